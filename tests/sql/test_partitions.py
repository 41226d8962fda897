"""Adopted partitioned tables: rows that move, partitions that come and go."""

from __future__ import annotations

import psycopg
import pytest
from psycopg.errors import RaiseException

from compactory_connectors.schema import Adoption, adopt, inspect, plan, status

from .conftest import REGIONS, column, dump, one


def deleted(connection: psycopg.Connection) -> list[tuple[object, ...]]:
    log = """SELECT "table"::text, "row" ->> 'terminal_id' FROM compactory.deleted_rows ORDER BY id"""
    return connection.execute(log).fetchall()


def test_a_second_run_changes_nothing(database: str, adopted_regions: psycopg.Connection):
    before = dump(database)
    assert adopt(adopted_regions, REGIONS) == []
    assert dump(database) == before


def test_an_index_spans_the_whole_tree(adopted_regions: psycopg.Connection):
    invalid = "SELECT indexrelid::regclass::text FROM pg_index WHERE NOT indisvalid"
    assert column(adopted_regions, invalid) == []
    attached = "SELECT count(*) FROM pg_inherits JOIN pg_index ON indexrelid = inhrelid"
    assert one(adopted_regions, attached) == 6  # two indexes on three partitions


def test_the_key_is_unique_in_the_whole_tree_where_postgres_can_keep_it_so(regions: psycopg.Connection):
    by_region = Adoption(table="terminal_region", key=("terminal_id", "region"), active="is_active")
    assert plan(regions, by_region).notes == ()
    adopt(regions, by_region)
    assert inspect(regions, "terminal_region").problems == ()
    ours = "indexrelid::regclass::text LIKE '%compactory_key'"
    assert one(regions, f"SELECT count(*) FROM pg_index WHERE indisunique AND indisvalid AND {ours}") == 4
    assert "not partitioned by its key" in plan(regions, REGIONS).notes[0]


def test_a_row_may_move_whether_active_or_not(adopted_regions: psycopg.Connection):
    db = adopted_regions
    db.execute("UPDATE terminal_region SET is_active = false WHERE terminal_id = 'T2'")
    with db.transaction():
        db.execute("UPDATE terminal_region SET region = 'b' WHERE region = 'a'")
        assert one(db, "SELECT count(*) FROM region_b WHERE updated_xid = pg_current_xact_id()") == 2
    assert column(db, "SELECT terminal_id FROM region_b ORDER BY 1") == ["T1", "T2", "T3"]
    assert deleted(db) == []


def test_a_moved_key_is_still_immutable(adopted_regions: psycopg.Connection):
    with pytest.raises(RaiseException, match="terminal_id cannot be changed"):
        adopted_regions.execute("UPDATE terminal_region SET region = 'b', terminal_id = 'X' WHERE terminal_id = 'T1'")


def test_a_row_deleted_after_it_moved_is_logged(adopted_regions: psycopg.Connection):
    with adopted_regions.transaction():
        adopted_regions.execute("UPDATE terminal_region SET region = 'b' WHERE terminal_id = 'T1'")
        adopted_regions.execute("UPDATE terminal_region SET is_active = false WHERE terminal_id = 'T1'")
        adopted_regions.execute("DELETE FROM terminal_region WHERE terminal_id = 'T1'")
    assert deleted(adopted_regions) == [("terminal_region", "T1")]


@pytest.mark.parametrize("target", ["terminal_region", "region_bc", "region_b"])
def test_deletes_are_refused_or_logged_for_the_root_whatever_table_they_name(
    adopted_regions: psycopg.Connection, target: str
):
    with pytest.raises(RaiseException, match="Active settings"):
        adopted_regions.execute(f"DELETE FROM {target}")
    with pytest.raises(RaiseException, match="Active settings"):
        adopted_regions.execute(f"TRUNCATE {target}")
    adopted_regions.execute("UPDATE terminal_region SET is_active = false")
    adopted_regions.execute(f"DELETE FROM {target} WHERE terminal_id = 'T3'")
    assert deleted(adopted_regions) == [("terminal_region", "T3")]


@pytest.mark.parametrize(
    ("target", "logged"), [("terminal_region", 3), ("region_bc", 1), ("region_b", 1), ("region_a", 2)]
)
def test_truncate_logs_each_row_once(adopted_regions: psycopg.Connection, target: str, logged: int):
    adopted_regions.execute("UPDATE terminal_region SET is_active = false")
    adopted_regions.execute(f"TRUNCATE {target}")
    assert len(deleted(adopted_regions)) == logged


def test_partitions_that_come_later_are_reported_and_mended(database: str, adopted_regions: psycopg.Connection):
    db = adopted_regions
    before = inspect(db, "terminal_region").partitions
    db.execute("CREATE TABLE region_c PARTITION OF region_bc FOR VALUES IN ('c')")
    db.execute("CREATE TABLE region_d (LIKE terminal_region INCLUDING DEFAULTS)")
    db.execute("INSERT INTO region_d (id, terminal_id, region) VALUES (100, 'D1', 'd')")
    db.execute("ALTER TABLE terminal_region ATTACH PARTITION region_d FOR VALUES IN ('d')")
    (found,) = status(db).tables
    assert {*before} < {*found.partitions}
    assert found.adopted  # what is known of the others goes on being known
    assert not found.notify
    assert "public.region_c: trigger zz_compactory_truncate is missing" in found.problems
    assert "public.region_d: trigger zz_compactory_notify is missing" in found.problems
    assert found.remedy == "compactory sql adopt public.terminal_region --key terminal_id --active is_active"
    adopt(db, REGIONS)
    (found,) = status(db).tables
    assert (found.adopted, found.notify, found.problems) == (True, True, ())
    shape = dump(database)
    assert adopt(db, REGIONS) == []
    assert dump(database) == shape


def test_what_names_the_root_is_covered_on_partitions_that_come_later_too(adopted_regions: psycopg.Connection):
    db = adopted_regions
    db.execute("CREATE TABLE region_c PARTITION OF region_bc FOR VALUES IN ('c')")
    db.execute("SET session_replication_role = replica")
    with db.transaction():
        db.execute("UPDATE terminal_region SET region = 'c', is_active = false WHERE terminal_id = 'T1'")
        assert one(db, "SELECT count(*) FROM region_c WHERE updated_xid = pg_current_xact_id()") == 1
    db.execute("DELETE FROM terminal_region WHERE terminal_id = 'T1'")
    assert {*deleted(db)} == {("terminal_region", "T1")}  # in this mode both triggers log it
    db.execute("INSERT INTO region_c (id, terminal_id, region, is_active) VALUES (100, 'C', 'c', true)")
    with pytest.raises(RaiseException, match="Active settings"):
        db.execute("TRUNCATE terminal_region")
    db.execute("UPDATE terminal_region SET is_active = false")
    db.execute("TRUNCATE terminal_region")  # the root sees to the leaf that has no trigger yet
    assert {key for _, key in deleted(db)} == {"C", "T1", "T2", "T3"}


@pytest.mark.parametrize("target", ["terminal_region", "region_bc", "region_c", "region_d", "region_e", "region_f"])
def test_deletions_of_partitions_that_come_later_are_logged(adopted_regions: psycopg.Connection, target: str):
    """Guarantee 10: whatever the statement names, before the table is adopted again."""
    db = adopted_regions
    db.execute("CREATE TABLE region_c PARTITION OF region_bc FOR VALUES IN ('c')")
    db.execute("CREATE TABLE region_d (LIKE terminal_region INCLUDING DEFAULTS)")
    db.execute("ALTER TABLE terminal_region ATTACH PARTITION region_d FOR VALUES IN ('d')")
    db.execute("CREATE TABLE region_e PARTITION OF terminal_region FOR VALUES IN ('e') PARTITION BY LIST (terminal_id)")
    db.execute("CREATE TABLE region_f PARTITION OF region_e DEFAULT")
    insert = "INSERT INTO terminal_region (terminal_id, region) VALUES ('C', 'c'), ('D', 'd'), ('E', 'e')"
    db.execute(insert)
    db.execute("UPDATE terminal_region SET is_active = false")
    gone = set(column(db, f"DELETE FROM {target} RETURNING terminal_id"))
    assert gone
    assert {*deleted(db)} == {("terminal_region", key) for key in gone}


def test_a_trigger_disabled_on_one_partition_is_reported_and_mended(adopted_regions: psycopg.Connection):
    adopted_regions.execute("ALTER TABLE region_b DISABLE TRIGGER zz_compactory_stamp")
    found = inspect(adopted_regions, "terminal_region")
    assert not found.adopted
    assert found.problems == ("public.region_b: trigger zz_compactory_stamp is not enabled as ALWAYS",)
    adopt(adopted_regions, REGIONS)
    assert inspect(adopted_regions, "terminal_region").problems == ()


def test_a_detached_partition_is_reported(adopted_regions: psycopg.Connection):
    adopted_regions.execute("ALTER TABLE terminal_region DETACH PARTITION region_a")
    tables = {table.table: table for table in status(adopted_regions).tables}
    assert tables["public.terminal_region"].problems == ()
    assert tables["public.region_a"].adopted is False
    assert tables["public.region_a"].problems


def test_a_table_without_partitions_yet(db: psycopg.Connection):
    db.execute(
        """CREATE TABLE t (id int, k text, updated_date timestamp NOT NULL DEFAULT now()) PARTITION BY HASH (k)"""
    )
    asked = Adoption(table="t", key=("k",))
    adopt(db, asked)
    assert inspect(db, "t").problems == ()
    db.execute("CREATE TABLE t0 PARTITION OF t FOR VALUES WITH (MODULUS 2, REMAINDER 0)")
    assert len(inspect(db, "t").problems) == 3  # the statement triggers; indexes and row triggers came by themselves
    adopt(db, asked)
    assert inspect(db, "t").problems == ()
