"""Placeholders and the .properties files behind them."""

from __future__ import annotations

import contextlib
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from compactory_connectors.connect.config.config_file import parse_properties
from compactory_connectors.connect.config.placeholder import Placeholders, environment_name

FILE = "org.apache.kafka.common.config.provider.FileConfigProvider"
ENV = "org.apache.kafka.common.config.provider.EnvVarConfigProvider"
DIRECTORY = "org.apache.kafka.common.config.provider.DirectoryConfigProvider"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a=1\nb: 2\nc 3\n", {"a": "1", "b": "2", "c": "3"}),
        ("  # no\n! no\n\n \t\na = b = c", {"a": "b = c"}),
        ("a = one, \\\n    two\\\n  three", {"a": "one, twothree"}),
        ("a=\\\n", {"a": ""}),
        ("only", {"only": ""}),
        ("a\\ b\\=c\\:d=x", {"a b=c:d": "x"}),
        ("a=\\t\\n\\r\\f\\\\\\q\\u00e9", {"a": "\t\n\r\f\\qé"}),
        ("a=\\uD83D\\uDE00", {"a": "😀"}),
        ("a=1\r\nb=2\rc=3", {"a": "1", "b": "2", "c": "3"}),
        ("a=1\na=2", {"a": "2"}),
        ("a=x  ", {"a": "x  "}),
        ("a=end\\\\\nb=1", {"a": "end\\", "b": "1"}),
        ("a=\\\\u12", {"a": "\\u12"}),
        ("db.url=jdbc:postgresql://h:5432/d?user=u#x", {"db.url": "jdbc:postgresql://h:5432/d?user=u#x"}),
    ],
)
def test_properties_are_read_as_java_reads_them(text: str, expected: dict[str, str]) -> None:
    assert parse_properties(text) == expected


def test_malformed_unicode_names_the_line_and_not_its_text() -> None:
    with pytest.raises(ValueError, match=r"^line 2: \\u must be followed by four hexadecimal digits$") as caught:
        parse_properties("a=1\npassword=secret\\u12\n")
    assert "secret" not in str(caught.value)


def _written(text: str) -> str:
    """As ``Properties.store`` would escape it."""
    units = text.encode("utf-16-be", "surrogatepass")
    return "".join(f"\\u{units[i]:02x}{units[i + 1]:02x}" for i in range(0, len(units), 2))


@given(st.dictionaries(st.text(st.characters(codec="utf-8"), min_size=1), st.text(st.characters(codec="utf-8"))))
def test_whatever_is_escaped_comes_back(pairs: dict[str, str]) -> None:
    text = "\n".join(f"{_written(key)}={_written(value)}" for key, value in pairs.items())
    assert parse_properties(text) == pairs


@given(st.text())
def test_any_text_is_read_or_refused(text: str) -> None:
    with contextlib.suppress(ValueError):
        assert all(isinstance(value, str) for value in parse_properties(text).values())


def test_the_environment_name_of_a_key() -> None:
    assert environment_name("tpp", "reference-data.db.url") == "TPP_REFERENCE_DATA_DB_URL"


def test_order_file_then_environment_then_declared(tmp_path: Path) -> None:
    given_file = tmp_path / "given.properties"
    given_file.write_text("a=from --provider")
    other = tmp_path / "other.properties"
    other.write_text("a=x\nb=y\nc=from config.providers")
    placeholders = Placeholders(
        {"p": given_file},
        {"P_A": "no", "P_B": "from the environment"},
        {"config.providers": "p", "config.providers.p.class": FILE},
    )
    path = f"${{p:{other}:"
    assert placeholders.resolve("k", path + "a}") == "from --provider"
    assert placeholders.resolve("k", path + "b}") == "from the environment"
    assert placeholders.resolve("k", path + "c}") == "from config.providers"
    assert placeholders.resolve("k", f"{path}a}}/{path}c}}") == "from --provider/from config.providers"
    assert placeholders.problems == []


def test_providers_of_connect(tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("from a file")
    placeholders = Placeholders(
        {},
        {"HOME_OF": "from the environment"},
        {
            "config.providers": "env, dir",
            "config.providers.env.class": ENV,
            "config.providers.dir.class": DIRECTORY,
        },
    )
    assert placeholders.resolve("k", "${env:HOME_OF}") == "from the environment"
    assert placeholders.resolve("k", f"${{dir:{tmp_path}:secret}}") == "from a file"
    assert placeholders.resolve("k", f"${{dir:{tmp_path}:../secret}}") is None


def test_text_without_placeholders_stays() -> None:
    placeholders = Placeholders({}, {}, {})
    for text in ("", "$", "${", "${no}", "{a:b}", "a $b"):
        assert placeholders.resolve("k", text) == text


def test_an_unresolved_placeholder_names_three_remedies() -> None:
    placeholders = Placeholders({}, {}, {})
    assert placeholders.resolve("connection.url", "jdbc:${tpp:reference-data.db.url}") is None
    assert placeholders.problems == [
        (
            "connection.url: nothing resolves ${tpp:reference-data.db.url}; "
            "give --provider tpp=FILE.properties with a line reference-data.db.url=…, "
            "or set TPP_REFERENCE_DATA_DB_URL in the environment, "
            "or declare config.providers=tpp with config.providers.tpp.class"
        )
    ]


def test_files_that_cannot_be_read_are_problems(tmp_path: Path) -> None:
    missing = tmp_path / "missing.properties"
    binary = tmp_path / "binary.properties"
    binary.write_bytes(b"a=\xff")
    bad = tmp_path / "bad.properties"
    bad.write_text("a=\\u1")
    placeholders = Placeholders({"m": missing, "b": binary, "u": bad}, {}, {})
    assert placeholders.problems == [
        f"--provider m={missing}: can't read {missing}: No such file or directory",
        f"--provider b={binary}: {binary} is not UTF-8 text",
        f"--provider u={bad}: {bad}: line 1: \\u must be followed by four hexadecimal digits",
    ]


def test_an_unknown_provider_class_is_a_problem() -> None:
    placeholders = Placeholders(
        {}, {}, {"config.providers": "vault,none", "config.providers.vault.class": "com.example.Vault"}
    )
    known = "DirectoryConfigProvider, EnvVarConfigProvider, FileConfigProvider"
    assert placeholders.problems == [
        (
            f"config.providers.vault.class: must name one of {known} of org.apache.kafka.common.config.provider; "
            "com.example.Vault is not one"
        ),
        (
            f"config.providers.none.class: must name one of {known} of org.apache.kafka.common.config.provider; "
            "it is missing"
        ),
    ]
