"""Named queries and the numbers that SQL and Python share."""

import pytest

import compactory_sql
from compactory_sql import loader


def test_descriptions_and_the_closing_semicolon_are_left_out():
    split = loader._split(
        "-- a file\n\n-- name: one\n-- takes 100 % of\n-- something\nSELECT 1;\n\n-- name: two\nSELECT 2"
    )
    assert split == {"one": "SELECT 1", "two": "SELECT 2"}


def test_a_name_given_twice_is_refused():
    with pytest.raises(ValueError, match="two queries are named 'one'"):
        loader._split("-- name: one\nSELECT 1;\n-- name: one\nSELECT 2;\n")


def test_an_unknown_name_is_answered_with_the_nearest():
    with pytest.raises(KeyError, match="did you mean 'adoption/unlock'"):
        compactory_sql.query("adoption/unlok")


@pytest.mark.parametrize("name", compactory_sql.query_names())
def test_every_query_has_text(name):
    assert compactory_sql.query(name).strip()
