"""Secrets are in nothing that a command prints, logs or serves, whether it works or fails."""

from __future__ import annotations

import re
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.request import urlopen

import psycopg
import pytest

from compactory_cli.stack.port import free_port
from compactory_sql import read
from tests.cli.conftest import Article, Outcome, Shell
from tests.security.secured_kafka import KEY_PASSWORD, SecuredKafka, toml
from tests.store.topics import eventually

LOUD = ("--log-level", "debug", "--log-format", "json")


@pytest.fixture
def ways(secured_kafka: SecuredKafka) -> list[dict[str, Any]]:
    """Properties with every kind of secret that a file can hold."""
    key = secured_kafka.client_certificate.key_pem(KEY_PASSWORD)
    certificate = secured_kafka.client_certificate.certificate_pem
    inline = {"ssl.certificate.pem": certificate, "ssl.key.pem": key, "ssl.key.password": KEY_PASSWORD}
    return [
        secured_kafka.login("SCRAM-SHA-512"),
        secured_kafka.oidc(),
        secured_kafka.client("MTLS") | inline,
    ]


def _commands(shell: Shell, properties: dict[str, Any], *commands: tuple[str | Path, ...]) -> str:
    shell.folder.mkdir()
    shell.write("compactory.toml", toml(properties | {"debug": "all"}))
    done: list[Outcome] = [shell(*command, *LOUD) for command in commands]
    return "\n".join(outcome.out + outcome.err for outcome in done)


def test_commands(
    secured_kafka: SecuredKafka, ways: list[dict[str, Any]], tmp_path: Path, unique: Callable[[str], str]
) -> None:
    topic = secured_kafka.topic(unique("secrets"))
    elsewhere = {"bootstrap.servers": secured_kafka.server.listener("ELSEWHERE")}
    wrong = [ways[0] | elsewhere, ways[2] | {"no.such.property": "1"}]
    with ThreadPoolExecutor(3) as pool:
        shells = [Shell(tmp_path / str(number)) for number in range(len(ways + wrong))]
        said = list(
            pool.map(lambda item: _commands(*item, ("get", topic, "1")), zip(shells, ways + wrong, strict=True))
        )
    assert sum('"n": 1' in text for text in said) == len(ways)
    assert all("rdkafka" in text or "error:" in text for text in said), "nothing was logged"
    assert secured_kafka.leaks(*said) == []


def test_a_file_that_is_no_toml(secured_kafka: SecuredKafka, ways: list[dict[str, Any]], tmp_path: Path) -> None:
    shell = Shell(tmp_path)
    broken = toml(ways[0]).replace("sasl.password = '''", "sasl.password = ")
    shell.write("compactory.toml", broken)
    done = shell("get", "directory", "1", *LOUD)
    assert done.code == 2
    assert secured_kafka.leaks(done.out, done.err) == []


def test_a_source(
    secured_kafka: SecuredKafka, ways: list[dict[str, Any]], database: str, tmp_path: Path, unique: Callable[[str], str]
) -> None:
    with psycopg.connect(database, autocommit=True) as connection:
        connection.execute(read("templates/terminal_acquirer.sql").encode())
    shell = Shell(tmp_path)
    article = Article(shell, database, unique("p") + "-")
    shell.write("compactory.toml", toml(ways[0] | {"debug": "all"}))
    valid = shell("source", "validate", *article.arguments, *LOUD)
    ran = shell("source", "run", "--once", *article.arguments, *LOUD)
    assert (valid.code, ran.code) == (0, 0), valid.err + ran.err
    refused = shell("source", "run", "--once", *article.arguments, *LOUD, COMPACTORY_KAFKA_SASL_USERNAME="nobody")
    assert refused.code == 2
    assert "check sasl.username and sasl.password" in refused.err
    texts = [text for done in (valid, ran, refused) for text in (done.out, done.err)]
    assert secured_kafka.leaks(*texts) == []
    assert "never printed" not in "".join(texts)  # the database's password in the article's properties


def test_a_server(
    secured_kafka: SecuredKafka, ways: list[dict[str, Any]], tmp_path: Path, unique: Callable[[str], str]
) -> None:
    topic = secured_kafka.topic(unique("served"))
    shell, port = Shell(tmp_path), free_port()
    shell.write("compactory.toml", toml(ways[1] | {"debug": "security"}))
    server = shell.start("serve", topic, "--listen", f"127.0.0.1:{port}", *LOUD)
    try:
        eventually(lambda: _page(port, "/readyz").startswith('{"ready":true'), 120)
        pages = [_page(port, path) for path in ("/v1/status", "/v1/directories", "/v1/errors", "/metrics", "/readyz")]
    finally:
        server.terminate()
        out, err = server.communicate(timeout=30)
    assert topic in pages[0]
    assert re.search("rdkafka|OAUTHBEARER", err), "nothing was logged"
    assert secured_kafka.leaks(*pages, out, err) == []


def _page(port: int, path: str) -> str:
    try:
        with urlopen(f"http://127.0.0.1:{port}{path}", timeout=10) as answer:
            return str(answer.read().decode()).replace(" ", "")
    except HTTPError as error:
        with error:
            return str(error.read().decode())
    except OSError:
        return ""
