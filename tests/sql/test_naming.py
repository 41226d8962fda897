"""Names and literals."""

from __future__ import annotations

import psycopg
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from compactory_connectors.schema import Adoption
from compactory_sql.naming import dollar_quoted, fold, literal, object_name, quoted, split_name

from .conftest import column, one

TEXTS = st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=80)


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("t", [("t", False)]),
        ("s.t", [("s", False), ("t", False)]),
        ('"a.b"."c""d"', [("a.b", True), ('c"d', True)]),
        ("My Table", [("My Table", False)]),
        ("", None),
        ("a.", None),
        (".a", None),
        ('"a', None),
        ('"a"b', None),
    ],
)
def test_a_dotted_name_is_taken_apart(text: str, parts: list[tuple[str, bool]] | None):
    assert split_name(text) == parts


@given(stem=TEXTS, other=TEXTS)
def test_object_names_fit_and_stay_different(stem: str, other: str):
    name = object_name(stem, "compactory_xid")
    assert len(name.encode()) <= 63
    assert name.endswith("_compactory_xid")
    assert (object_name(other, "compactory_xid") == name) == (stem == other)


def test_folding_is_that_of_the_server():
    assert fold("ÜbEr_T1") == "Über_t1"


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=50, deadline=None)
@given(text=TEXTS)
@pytest.mark.parametrize("conforming", ["on", "off"])
def test_constants_mean_what_was_quoted(db: psycopg.Connection, conforming: str, text: str):
    db.execute(f"SET standard_conforming_strings = {conforming}")
    assert one(db, f"SELECT {literal(text)}") == text
    assert one(db, f"SELECT {dollar_quoted(text)}") == text
    name = object_name(text[:20], "x")
    assert column(db, f"SELECT to_jsonb(r) ->> {literal(name)} FROM (SELECT 1 AS {quoted(name)}) AS r") == ["1"]


@given(
    st.builds(
        Adoption,
        table=st.just("t"),
        key=st.lists(TEXTS, min_size=1).map(tuple),
        active=st.none() | TEXTS,
        timestamp=TEXTS,
        id=TEXTS,
        notify=st.booleans(),
    )
)
def test_settings_come_back_as_they_were(adoption: Adoption):
    assert Adoption.from_settings("t", adoption.settings()) == adoption


def test_settings_of_others_are_told_apart():
    for text in ("{}", "[]", '{"key": null}'):
        with pytest.raises(ValueError, match="not an adoption"):
            Adoption.from_settings("t", text)
    with pytest.raises(ValueError, match="Expecting value"):
        Adoption.from_settings("t", "nonsense")


def test_the_command_that_repeats_an_adoption():
    assert Adoption(table="t", key=("a", "b")).command() == "compactory sql adopt t --key a,b"
    asked = Adoption(table='"My T"', key=("k",), active="on", timestamp="ts", id="no", notify=False, allow_deletes=True)
    assert asked.command() == (
        """compactory sql adopt '"My T"' --key k --active on --allow-deletes --timestamp ts --id no --no-notify"""
    )
