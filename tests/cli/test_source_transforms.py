"""The example with transforms of every kind, as a dry run shows it."""

from __future__ import annotations

from pathlib import Path
from urllib.parse import urlsplit

import psycopg

from tests.cli.conftest import Shell

EXAMPLE = Path(__file__).parents[2] / "examples" / "connectors" / "tariffs.json"
TABLES = """
CREATE TABLE tariff (id int8 PRIMARY KEY, tenant text NOT NULL, iban text, amount numeric(9, 2),
    updated_at timestamp NOT NULL);
CREATE TABLE tariff_draft (LIKE tariff INCLUDING ALL);
INSERT INTO tariff VALUES (1, 'north', 'DE1', 12.5, '2024-01-01 11:11:11.9'), (2, 'south', NULL, NULL, '2024-01-02');
INSERT INTO tariff_draft VALUES (3, 'north', 'DE3', 1, '2024-01-01');
"""


def test_the_example_with_transforms_of_every_kind(compactory: Shell, database: str, tmp_path: Path) -> None:
    with psycopg.connect(database, autocommit=True) as connection:
        connection.execute(TABLES)
    parts = urlsplit(database)
    secrets = tmp_path / "shop.properties"
    url = f"jdbc:postgresql://{parts.hostname}:{parts.port}{parts.path}"
    secrets.write_text(f"db.url={url}\ndb.user={parts.username}\ndb.password=x\n")
    arguments = ("source", "run", "--dry-run", str(EXAMPLE), "--provider", f"shop={secrets}")

    outcome = compactory(*arguments, "--json")
    assert outcome.code == 0, outcome.err
    [connector] = outcome.json["connectors"]
    [table] = connector["tables"]
    assert table["topic"] == "reference.tariff"
    assert connector["warnings"] == [
        "table public.tariff_draft: a Filter of the transforms drops every row, so it is not polled"
    ]
    first = {
        "id": 1,
        "tenant": "north",
        "iban": "***",
        "amount": 12.5,
        "updated_at": 1704107471,
        "table": "shop.tariff",
    }
    second = {
        "id": 2,
        "tenant": "south",
        "iban": None,
        "amount": None,
        "updated_at": 1704153600,
        "table": "shop.tariff",
    }
    assert table["records"] == [
        {"key": "1", "value": first},
        {"key": "2", "value": second},
    ]
    assert '"tenant":"north"' in compactory(*arguments).out
