"""From connectors and a real catalogue to plans: what is chosen, what is refused, what is warned of."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import psycopg
import pytest

from compactory.errors import ConfigError
from compactory_connectors.schema import Adoption, adopt
from compactory_connectors.source.operations.preview import preview
from compactory_connectors.source.planning.planner import find_plans, plan_tables
from compactory_connectors.source.planning.table_plan import Reading, TablePlan
from compactory_connectors.source.postgres.server import Server
from tests.source.poller import cleared, config, settings

TABLE = "(id int8 PRIMARY KEY, changed timestamp NOT NULL)"
ROUTE = {"transforms__route__type": "org.apache.kafka.connect.transforms.RegexRouter",
         "transforms__route__regex": ".*", "transforms__route__replacement": "x",
         "transforms": "key,id,route"}  # fmt: skip
"""Every table goes to topic x."""


class Planner:
    """Plans connectors on one database."""

    def __init__(self, url: str, server: Server) -> None:
        self.url, self.server = url, server

    def plans(self, mode: str = "timestamp+incrementing", **changes: Any) -> list[TablePlan]:
        return plan_tables(self.server, config(settings(self.url, mode, **changes)))

    def names(self, **changes: Any) -> list[str]:
        return [plan.qualified for plan in self.plans("bulk", **changes)]

    def problems(self, mode: str = "timestamp+incrementing", **changes: Any) -> list[str]:
        with pytest.raises(ConfigError) as caught:
            self.plans(mode, **changes)
        return caught.value.problems


@pytest.fixture
def database(shared: str) -> str:
    """URL of an empty database."""
    return cleared(shared)


@pytest.fixture
def sql(database: str) -> Iterator[psycopg.Connection]:
    with psycopg.connect(database, autocommit=True) as connection:
        yield connection


@pytest.fixture
def planner(database: str, sql: psycopg.Connection) -> Iterator[Planner]:
    server = Server.open({"conninfo": database})
    yield Planner(database, server)
    server.close()


def test_every_bad_table_at_once(sql: psycopg.Connection, planner: Planner) -> None:
    sql.execute("CREATE TABLE good (id int8 PRIMARY KEY, changed timestamp NOT NULL, is_active bool)")
    sql.execute("CREATE VIEW seen AS SELECT * FROM good")
    sql.execute("CREATE TABLE other_one (idd int8, changed date, is_active text)")
    missing = f"has no such table, or user {sql.info.user} can't see it"
    problems = planner.problems(
        table__whitelist="good,seen,other_one,goood,other.good", compactory__soft__delete__column="is_active"
    )
    server = config(settings(planner.url, "bulk")).connection.server
    changed = "table public.other_one: timestamp.column.name: column changed"
    assert problems == [
        "table.whitelist: seen: is a view; add VIEW to table.types",
        f"table.whitelist: goood: database {server} {missing}; did you mean good?",
        f"table.whitelist: other.good: database {server} {missing}",
        "table public.other_one: incrementing.column.name: there is no column id; did you mean idd?",
        f"{changed} is of type date, expected timestamp or timestamptz",
        f"{changed} may be NULL; make it NOT NULL, or set validate.non.null=false",
        "table public.other_one: compactory.soft.delete.column: column is_active is of type text, expected boolean",
        *[problem for problem in problems if "transforms.key: the value has no field id" in problem],
    ]


def test_nullable_columns_are_refused_unless_the_connector_allows_them(
    sql: psycopg.Connection, planner: Planner
) -> None:
    sql.execute("CREATE TABLE t (key int8 PRIMARY KEY, id int8, changed timestamp, updated timestamp NOT NULL)")
    remedy = "make it NOT NULL, or set validate.non.null=false"
    assert planner.problems() == [
        f"table public.t: incrementing.column.name: column id may be NULL; {remedy}",
        f"table public.t: timestamp.column.name: column changed may be NULL; {remedy}",
    ]
    assert planner.plans(validate__non__null="false")
    assert planner.plans("timestamp", timestamp__column__name="changed,updated")


def test_two_schemas_with_one_table_name(sql: psycopg.Connection, planner: Planner) -> None:
    """The real connector fails without saying which, or publishes both to one topic."""
    sql.execute(f"CREATE TABLE t {TABLE}; CREATE SCHEMA ref; CREATE TABLE ref.t {TABLE}")
    for names in ("t", "t,ref.t", "public.t,ref.t"):
        (problem,) = planner.problems(table__whitelist=names)
        assert problem.startswith("table.whitelist: public.t and ref.t would share a topic")
    assert planner.names(table__whitelist="ref.t") == ["ref.t"]
    assert planner.names(table__whitelist="t", schema__pattern="re_") == ["ref.t"]


def test_what_is_chosen(sql: psycopg.Connection, planner: Planner) -> None:
    for name in ("a", "b", "c", "ref.d", '"A b"'):
        sql.execute(f"CREATE SCHEMA IF NOT EXISTS ref; CREATE TABLE {name} {TABLE}")
    sql.execute(f"CREATE VIEW seen AS SELECT * FROM a; CREATE SCHEMA compactory; CREATE TABLE compactory.x {TABLE}")
    assert planner.names(table__whitelist="c, a") == ["public.c", "public.a"]
    assert planner.names(table__whitelist=None, table__blacklist='a,public.b,"A b"') == ["public.c", "ref.d"]
    assert planner.names(table__include__list=r"public\.[ab],.*\.d", table__exclude__list=r".*\.b") == [
        "public.a",
        "ref.d",
    ]
    assert planner.names(table__include__list=r"public\.A b", **ROUTE) == ["public.A b"]
    assert planner.names(table__include__list=r".*", table__types="VIEW") == ["public.seen"]
    assert planner.names(table__include__list=".*", schema__pattern="ref") == ["ref.d"]
    assert planner.names(table__include__list="nothing") == []
    assert planner.problems("bulk", catalog__pattern="other", table__whitelist="a")[0].startswith("catalog.pattern:")


def test_columns_by_table(sql: psycopg.Connection, planner: Planner) -> None:
    sql.execute(f"CREATE TABLE a {TABLE}; CREATE TABLE b (id int8 PRIMARY KEY, updated timestamp NOT NULL)")
    written = {
        "table__include__list": r"public\..*",
        "incrementing__column__name": None,
        "timestamp__column__name": None,
        "incrementing__column__mapping": ".*:id",
        "timestamp__columns__mapping": r"public\.a:[changed],public\.b:[updated]",
    }
    assert [plan.timestamps for plan in planner.plans(**written)] == [("changed",), ("updated",)]
    assert planner.problems(**written | {"timestamp__columns__mapping": r"public\.a:[changed]"}) == [
        "table public.b: timestamp.columns.mapping: none of its patterns fits public.b; exactly one must"
    ]
    several = r".*:[changed],public\.b:[updated]"
    assert planner.problems(**written | {"timestamp__columns__mapping": several})[0].startswith(
        "table public.b: timestamp.columns.mapping: several of its patterns fit"
    )


def test_warnings_of_what_will_hurt(sql: psycopg.Connection, planner: Planner) -> None:
    sql.execute("CREATE TABLE t (id int8 NOT NULL, changed timestamp NOT NULL)")
    (plan,) = planner.plans()
    warnings = "\n".join(plan.warnings)
    for text in ("has no primary key", "(id) are not unique by any index"):
        assert text in warnings
    assert ["no index on changed" in text for text in plan.load_warnings] == [True]
    sql.execute("ALTER TABLE t ADD PRIMARY KEY (id); CREATE INDEX ON t (changed)")
    assert planner.plans()[0].warnings == planner.plans()[0].load_warnings == ()
    (plan,) = planner.plans("incrementing", query__suffix="LIMIT 10")
    assert plan.reading is Reading.CURSOR
    assert "guarantee 8" in plan.warnings[0]
    assert "timestamp.delay" not in plan.warnings[0]
    (plan,) = planner.plans("timestamp", timestamp__delay__interval__ms="5")
    assert "timestamp.delay.interval.ms has no effect" in plan.warnings[0]
    assert config(settings(planner.url, "incrementing", timestamp__delay__interval__ms="5")).notes
    keyless = {f"transforms__{name}": None for name in ("key__type", "key__fields", "id__type", "id__field")}
    keyless |= {"transforms": None, "topic__creation__default__cleanup__policy": "delete"}
    (plan,) = planner.plans("incrementing", compactory__max__changed__percent="20", **keyless)
    assert "compactory.max.changed.percent has no effect" in "\n".join(plan.warnings)


def test_an_index_of_active_rows_keeps_keys_apart_where_others_make_tombstones(
    sql: psycopg.Connection, planner: Planner
) -> None:
    """Adoption with an active column builds it. A tombstone of an inactive row never removes a living row's record."""
    sql.execute(f'CREATE TABLE "T" {TABLE[:-1]}, sku text NOT NULL, "Live" bool NOT NULL DEFAULT true)')
    adopt(sql, Adoption(table='"T"', key=("sku",), active="Live", timestamp="changed"))
    by_sku = {
        "table__whitelist": "T",
        "transforms__key__fields": "sku",
        "transforms__id__field": "sku",
        "compactory__soft__delete__column": "Live",
    }

    def doubts(**changes: Any) -> list[str]:
        (plan,) = planner.plans(**by_sku | changes)
        return [text for text in plan.warnings if "unique" in text]

    assert doubts() == []
    message = "(sku) are unique among rows where Live is not false; an inactive row may overwrite the active one"
    for changes in ({"compactory__soft__delete__mode": "value"}, {"compactory__soft__delete__column": None}):
        (doubt,) = doubts(**changes)
        assert message in doubt
        assert "compactory.soft.delete.column=Live" in doubt
    sql.execute('DROP INDEX "T_compactory_key"; CREATE UNIQUE INDEX ON "T" (sku) WHERE id > 5')
    assert "(sku) are not unique by any index" in doubts()[0]


def test_partitions_that_are_polled_one_by_one(sql: psycopg.Connection, planner: Planner) -> None:
    sql.execute("CREATE TABLE p (id int8 PRIMARY KEY, changed timestamp NOT NULL) PARTITION BY RANGE (id)")
    sql.execute("CREATE TABLE p1 PARTITION OF p FOR VALUES FROM (0) TO (10)")
    written = settings(planner.url, "bulk", table__include__list=".*")
    plans = find_plans(planner.server, config(written))
    assert [plan.name for plan in plans.plans] == ["p1"]
    assert "public.p1: partitions are polled as tables" in plans.warnings[0]
    assert planner.names(table__include__list=".*", table__types="PARTITIONED TABLE") == ["public.p"]
    assert planner.names(table__whitelist="p") == ["public.p"]


def test_tables_that_a_transform_sends_to_one_topic(sql: psycopg.Connection, planner: Planner) -> None:
    """Their keys may be the same, and one row's record then replaces that of another table's row."""
    sql.execute("CREATE TABLE a (id int8 PRIMARY KEY); CREATE TABLE b (id int8 PRIMARY KEY)")
    route = {"transforms": "key,id,route", "transforms__route__type": "org.apache.kafka.connect.transforms.RegexRouter",
             "transforms__route__regex": ".*", "transforms__route__replacement": "one"}  # fmt: skip
    written = settings(planner.url, "bulk", table__whitelist="a,b", **route)
    (warning,) = find_plans(planner.server, config(written)).warnings
    assert warning.startswith("topic one: is that of public.a and public.b")
    assert find_plans(planner.server, config(settings(planner.url, "bulk", table__whitelist="a,b"))).warnings == ()


def test_an_index_to_make_is_written_as_psql_reads_it(sql: psycopg.Connection, planner: Planner) -> None:
    sql.execute('CREATE TABLE "A ""b" (id int8 PRIMARY KEY, "Changed At" timestamp NOT NULL)')
    columns = {"timestamp__column__name": None, "timestamp__columns__mapping": ".*:[Changed At]"}
    written = settings(planner.url, "timestamp", table__include__list=".*", **columns, **ROUTE)
    (plan,) = find_plans(planner.server, config(written)).plans
    (warning,) = plan.load_warnings
    sql.execute(warning.partition("; ")[2].encode())
    assert find_plans(planner.server, config(written)).plans[0].load_warnings == ()


def test_a_name_in_other_letters_is_near(sql: psycopg.Connection, planner: Planner) -> None:
    sql.execute("CREATE TABLE orders (id int8 PRIMARY KEY)")
    written = settings(planner.url, "bulk", table__whitelist="PUBLIC.ORDERS")
    (problem,) = find_plans(planner.server, config(written)).problems
    assert problem.endswith("did you mean public.orders?")


def test_a_preview_says_which_rows_are_skipped(sql: psycopg.Connection, planner: Planner) -> None:
    """Else a table of which every row is skipped looks like an empty one."""
    sql.execute("CREATE TABLE t (id int8 PRIMARY KEY, name text); INSERT INTO t VALUES (1, '1'), (2, 'two')")
    cast = {"transforms": "key,id,cast", "transforms__cast__type": "org.apache.kafka.connect.transforms.Cast$Value",
            "transforms__cast__spec": "name:int32", "errors__tolerance": "all"}  # fmt: skip
    (shown,) = preview(config(settings(planner.url, "bulk", **cast)))
    assert len(shown.records) == 1
    (reason,) = shown.skipped
    assert reason.startswith("row id 2: column name: Cast")


def test_what_becomes_of_rows_without_a_timestamp(sql: psycopg.Connection, planner: Planner) -> None:
    sql.execute("CREATE TABLE t (id int8 PRIMARY KEY, changed timestamp); CREATE INDEX ON t (changed)")
    for initial, fate in (None, "sent, after all others"), ("0", "left out of a first load"):
        (plan,) = planner.plans("timestamp", validate__non__null="false", timestamp__initial=initial)
        (warning,) = plan.warnings
        assert fate in warning


def test_a_name_that_makes_no_topic_is_the_problem_of_its_table(sql: psycopg.Connection, planner: Planner) -> None:
    sql.execute(f'CREATE TABLE good {TABLE}; CREATE TABLE "price list" {TABLE}')
    everything = {"table__whitelist": None, "table__blacklist": "nothing"}
    assert planner.names(**everything) == ["public.good"]
    with pytest.raises(ConfigError, match=r"table public\.price list: makes the topic 'p-price list'; Kafka takes"):
        preview(config(settings(planner.url, "bulk", **everything)))
    (problem,) = planner.problems(table__whitelist='"price list"')
    assert "makes the topic 'p-price list'" in problem
    (problem,) = planner.problems(table__whitelist=None, query="SELECT * FROM good", topic__prefix="price list")
    assert "'price list'" in problem


def test_numbers_that_go_out_as_base64_are_named_with_the_remedy(sql: psycopg.Connection, planner: Planner) -> None:
    sql.execute("CREATE TABLE t (id int8 PRIMARY KEY, price numeric(10, 2), cost numeric(9, 3), name text)")
    remedy = "value.converter.decimal.format=NUMERIC"
    (plan,) = planner.plans("bulk")
    (warning,) = [warning for warning in plan.warnings if remedy in warning]
    assert warning.startswith("table public.t: price, cost: ")
    for fitting in ({"value__converter__decimal__format": "NUMERIC"}, {"numeric__mapping": "best_fit_eager_double"}):
        (plan,) = planner.plans("bulk", **fitting)
        assert not any("price:" in warning for warning in plan.warnings)


def test_rows_with_timestamps_in_the_future_are_warned_of(sql: psycopg.Connection, planner: Planner) -> None:
    """A view without row versions leaves such rows out; most often its column has local times of another zone."""
    sql.execute("CREATE TABLE t " + TABLE + "; CREATE VIEW v AS SELECT * FROM t OFFSET 0")
    sql.execute("INSERT INTO t VALUES (1, timezone('UTC', now()) - interval '1 minute')")
    view = {"table__types": "VIEW", "table__whitelist": "v"}
    assert not any("in the future" in text for plan in planner.plans(**view) for text in plan.load_warnings)
    sql.execute("INSERT INTO t VALUES (2, timezone('UTC', now()) + interval '2 hours')")
    [warning] = [text for plan in planner.plans(**view) for text in plan.load_warnings if "in the future" in text]
    assert "by the clock of zone UTC" in warning
    assert "set db.timezone" in warning
