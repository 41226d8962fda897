"""Tables that are locked, altered, or refused while the source runs: that one stops and goes on by itself (issue 7)."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from itertools import count
from urllib.parse import urlsplit

import psycopg
import pytest
from confluent_kafka.admin import AlterConfigOpType, ConfigEntry, ConfigResource, ResourceType
from psycopg import sql

from compactory_connectors.kafka.topic_reader import read
from compactory_connectors.postgres.watched_connection import WatchedConnection
from compactory_connectors.schema import Adoption, adopt, install
from compactory_connectors.source.status.status import SourceState
from tests.source.runtime.test_tables import Shop
from tests.source.workload import wait_until
from tests.stack.apache_kafka import new_admin
from tests.stack.postgres_versions import needs

proof = partial(pytest.param, marks=pytest.mark.proof)


@pytest.fixture
def shop(database: str, kafka: str, unique: Callable[[str], str]) -> Iterator[Shop]:
    """Tables ``t`` and ``other`` of one row, which are followed."""
    shop = Shop(database, kafka, f"{unique('m')}-")
    shop.table("t", 1)
    shop.table("other", 1)
    yield shop
    shop.close()


def values(shop: Shop, table: str = "t") -> list[dict[str, object]]:
    return [json.loads(message.value() or b"{}") for message in read(shop.kafka, f"{shop.prefix}{table}")]


def others_go_on(shop: Shop) -> None:
    """A change of the other table is in its topic soon."""
    (number,) = shop.sql.execute("INSERT INTO other SELECT max(id) + 1 FROM other RETURNING id").fetchone() or (0,)
    wait_until(lambda: b"%d" % number in shop.keys("other"), 5, "the other table's change")


def wait_for_state(shop: Shop, state: SourceState, table: str = "t") -> str:
    wait_until(lambda: (found := shop.status(table)) and found.state is state, 20, f"{state} of {table}")
    return shop.status(table).detail or ""  # type: ignore[union-attr]


def follow(shop: Shop, **changes: str) -> None:
    shop.start(**changes)
    shop.wait_for("t", b"1")
    shop.wait_for("other", b"1")


def test_a_locked_table_keeps_no_other_waiting_and_is_seen(shop: Shop) -> None:
    """Guarantee 12: a migration holds it; the status says who, and since when."""
    follow(shop)
    with psycopg.connect(shop.url, application_name="migration") as migration:
        migration.execute("LOCK TABLE t")
        shop.add("other", 2)
        detail = wait_for_state(shop, SourceState.WAITING)
        assert f"locked by pid {migration.info.backend_pid} (user postgres, application migration" in detail
        before = shop.status("t").current_at or 0.0  # type: ignore[union-attr]
        for _ in range(3):
            others_go_on(shop)
        assert shop.status("t").current_at == before  # type: ignore[union-attr]
        migration.rollback()
    wait_for_state(shop, SourceState.RUNNING)
    assert shop.status("t").detail is None  # type: ignore[union-attr]
    assert shop.keys("t") == [b"1"]


def test_a_prepared_transaction_that_locks_a_table_is_named(shop: Shop) -> None:
    """Until it is restarted, Postgres shows the locks under the number of the session that prepared them."""
    follow(shop)
    gid = f"migration-{shop.prefix}"
    shop.sql.execute(f"BEGIN; LOCK TABLE t; PREPARE TRANSACTION '{gid}'")
    try:
        shop.add("other", 2)
        detail = wait_for_state(shop, SourceState.WAITING)
        assert f"locked by prepared transaction '{gid}' of user postgres, since " in detail
    finally:
        shop.sql.execute(f"ROLLBACK PREPARED '{gid}'")
    wait_for_state(shop, SourceState.RUNNING)


def test_a_locked_partition_keeps_no_other_waiting(shop: Shop) -> None:
    """Also where it was found locked when its plan was made."""
    shop.sql.execute("CREATE TABLE whole (LIKE t INCLUDING DEFAULTS) PARTITION BY RANGE (id);"
                     " CREATE TABLE part PARTITION OF whole FOR VALUES FROM (1) TO (100)")  # fmt: skip
    with psycopg.connect(shop.url, application_name="migration") as migration:
        migration.execute("LOCK TABLE part")
        shop.start(table__types="TABLE,PARTITIONED TABLE", table__include__list=r"public\.(whole|other)")
        shop.wait_for("other", b"1")
        wait_until(lambda: "locked by pid" in str(shop.status("whole")), what="the holder")
        others_go_on(shop)
    shop.add("whole", 5)
    shop.wait_for("whole", b"5")


@pytest.mark.parametrize(
    "setting",
    [
        "statement_timeout = '30ms'",
        proof("idle_session_timeout = '100ms'"),
        proof("idle_in_transaction_session_timeout = '1ms'"),
        proof("transaction_timeout = '10ms'"),
        proof("lock_timeout = 0"),
    ],
)
def test_time_outs_of_the_role_are_for_applications(shop: Shop, setting: str) -> None:
    """Guarantee 12: a source under them would fail for ever, or end its session whenever it rests."""
    shop.sql.execute("INSERT INTO t SELECT n FROM generate_series(2, 2000) n")
    database = urlsplit(shop.url).path[1:]
    shop.sql.execute(sql.SQL("ALTER DATABASE {} SET ").format(sql.Identifier(database)) + sql.SQL(setting))
    shop.start(batch__max__rows="500")
    wait_until(lambda: len(shop.keys("t")) == 2000, what="the first load")
    others_go_on(shop)
    assert shop.status("t").errors_total == 0  # type: ignore[union-attr]


def test_a_time_out_of_the_role_before_it_is_lifted(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the machine is busy, the statement that lifts it is too slow itself: the source connects again."""
    needs(17)
    settle, attempts = WatchedConnection.settle, count()

    def slow(connection: WatchedConnection, *given: Mapping[str, str]) -> None:
        if next(attempts) == 0:
            connection.execute("SET transaction_timeout = '10ms'")
            connection.execute("SELECT pg_sleep(5)")
        settle(connection, *given)

    monkeypatch.setattr(WatchedConnection, "settle", slow)
    follow(shop)
    assert next(attempts) == 2


@pytest.mark.proof
def test_a_time_out_that_the_url_asks_for_is_kept(shop: Shop) -> None:
    shop.sql.execute("CREATE VIEW slow AS SELECT id, changed, pg_sleep(2) IS NULL AS s FROM t")
    url = f"{shop.url}?options=-c%20statement_timeout%3D100"
    shop.start("bulk", connection__url=url, table__types="TABLE,VIEW", table__include__list=r"public\.(slow|other)")
    assert "statement timeout" in wait_for_state(shop, SourceState.FAILED, "slow")
    wait_until(lambda: len(shop.keys("other")) > 2, what="the other table")


def test_an_added_column_is_in_the_next_records(shop: Shop) -> None:
    """Rows that nobody touches stay as they were sent, whatever the column's default."""
    follow(shop)
    shop.sql.execute("ALTER TABLE t ADD COLUMN note text DEFAULT 'x'")
    shop.add("t", 2)
    shop.wait_for("t", b"1", b"2")
    assert ["note" in value for value in values(shop)] == [False, True]


@pytest.mark.parametrize(
    ("change", "back", "said"),
    [
        ("DROP COLUMN changed", "ADD COLUMN changed timestamp NOT NULL DEFAULT now()", "changed"),
        proof("RENAME COLUMN changed TO altered", "RENAME COLUMN altered TO changed", "changed"),
        proof(
            "ALTER COLUMN changed TYPE text", "ALTER COLUMN changed TYPE timestamp USING changed::timestamp", "changed"
        ),
        proof("RENAME COLUMN id TO number", "RENAME COLUMN number TO id", "id"),
    ],
)
def test_a_cursor_column_that_goes_stops_its_table_alone(shop: Shop, change: str, back: str, said: str) -> None:
    """It says what is missing, and goes on by itself once the column is there again."""
    follow(shop)
    shop.sql.execute(f"ALTER TABLE t {change}")
    detail = wait_for_state(shop, SourceState.FAILED)
    assert said in detail
    word = shop.status("t").current_at  # type: ignore[union-attr]
    others_go_on(shop)
    assert shop.status("t").current_at == word  # type: ignore[union-attr]
    shop.sql.execute(f"ALTER TABLE t {back}")
    shop.add("t", 2)
    wait_until(lambda: b"2" in shop.keys("t"), what="the row behind the mend")
    wait_for_state(shop, SourceState.RUNNING)


def test_a_column_that_records_have_may_go_and_change_its_type(shop: Shop) -> None:
    follow(shop)
    shop.sql.execute("ALTER TABLE t ALTER COLUMN amount TYPE int")
    shop.add("t", 2)
    wait_until(lambda: b"2" in shop.keys("t"), what="the row behind the rewrite")
    assert [value["amount"] for value in values(shop)][-1] == 1
    shop.sql.execute("ALTER TABLE t ALTER COLUMN amount TYPE bigint")
    shop.sql.execute("INSERT INTO t VALUES (3, 5000000000)")
    wait_until(lambda: shop.keys("t")[-1] == b"3", what="a value that no int holds")
    assert values(shop)[-1]["amount"] == 5000000000
    shop.sql.execute("ALTER TABLE t DROP COLUMN amount")
    shop.add("t", 4)
    wait_until(lambda: shop.keys("t")[-1] == b"4", what="the row behind the drop")
    assert "amount" not in values(shop)[-1]
    assert shop.status("t").errors_total == 0  # type: ignore[union-attr]


@pytest.mark.proof
def test_a_value_is_added_to_an_enum(shop: Shop) -> None:
    shop.sql.execute("CREATE TYPE colour AS ENUM ('red'); ALTER TABLE t ADD COLUMN colour colour DEFAULT 'red'")
    follow(shop)
    shop.sql.execute("ALTER TYPE colour ADD VALUE 'blue'")
    shop.sql.execute("UPDATE t SET colour = 'blue', changed = now()")
    shop.wait_for("t", b"1", b"1")
    assert [value["colour"] for value in values(shop)] == ["red", "blue"]


@pytest.fixture
def reader(shop: Shop, unique: Callable[[str], str]) -> Iterator[str]:
    """A role that may read the tables and no more, by which the shop's sources log in."""
    role = unique("reader").replace("-", "_")
    shop.sql.execute(f"CREATE ROLE {role} LOGIN; GRANT SELECT ON t, other TO {role}")
    parts = urlsplit(shop.url)
    shop.start(connection__url=f"postgresql://{role}@{parts.hostname}:{parts.port}{parts.path}")
    shop.wait_for("t", b"1")
    yield role
    shop.close()
    with psycopg.connect(shop.url, autocommit=True) as owner:
        owner.execute(f"DROP OWNED BY {role}; DROP ROLE {role}")


@pytest.mark.parametrize(
    ("change", "back", "said"),
    [
        ("REVOKE SELECT ON t FROM {}", "GRANT SELECT ON t TO {}", "permission denied for table t"),
        ("ALTER TABLE t ENABLE ROW LEVEL SECURITY", "ALTER TABLE t DISABLE ROW LEVEL SECURITY", "row-level security"),
    ],
)
def test_a_right_that_is_lost_and_given_back(shop: Shop, reader: str, change: str, back: str, said: str) -> None:
    """Guarantee 8: what was committed behind a policy is sent as well, once the reader sees it."""
    shop.sql.execute(change.format(reader))
    shop.add("t", 2)
    assert said in wait_for_state(shop, SourceState.FAILED)
    others_go_on(shop)
    shop.sql.execute(back.format(reader))
    shop.wait_for("t", b"1", b"2")
    wait_for_state(shop, SourceState.RUNNING)


def test_a_table_is_adopted_and_let_go_again(shop: Shop) -> None:
    """Guarantee 8 holds through both, under writes."""
    follow(shop)
    install(shop.sql)
    adopt(shop.sql, Adoption(table="t", key=("id",), timestamp="changed"))
    shop.add("t", 2)
    wait_until(lambda: b"2" in shop.keys("t"), what="the row behind the adoption")
    wait_until(lambda: shop.status("t").adopted, what="adopted")  # type: ignore[union-attr]
    triggers = shop.sql.execute("SELECT tgname FROM pg_trigger WHERE tgrelid = 't'::regclass AND NOT tgisinternal")
    for (name,) in triggers.fetchall():
        shop.sql.execute(sql.SQL("DROP TRIGGER {} ON t").format(sql.Identifier(name)))
    shop.add("t", 3)
    wait_until(lambda: b"3" in shop.keys("t"), what="the row without a stamp")
    shop.sql.execute("ALTER TABLE t DROP COLUMN updated_xid")
    shop.add("t", 4)
    wait_until(lambda: b"4" in shop.keys("t"), what="the row without the column")
    wait_until(lambda: not shop.status("t").adopted, what="not adopted")  # type: ignore[union-attr]
    assert {b"1", b"2", b"3", b"4"} == set(shop.keys("t"))


@pytest.mark.proof
def test_a_rewritten_table_is_sent_again_as_it_is(shop: Shop) -> None:
    follow(shop)
    shop.sql.execute("ALTER TABLE t ALTER COLUMN amount TYPE numeric USING amount + 1")
    shop.wait_for("t", b"1", b"1")
    assert values(shop)[0]["amount"] != values(shop)[1]["amount"]
    others_go_on(shop)


@pytest.mark.parametrize("transactions", ["on", proof("off")])
@pytest.mark.parametrize(("where", "size"), [proof("client", 100_000), ("broker", 1_000)])
def test_a_record_that_kafka_refuses_stops_its_table_alone(
    shop: Shop, where: str, size: int, transactions: str
) -> None:
    """Guarantee 12: too large for the topic; the transaction is given up, and the other tables go on."""
    shop.sql.execute("ALTER TABLE t ADD COLUMN note text")
    limit = {"producer__override__max__request__size": "1000000"} if where == "client" else {}
    follow(shop, compactory__transactions=transactions, **limit)
    if where == "broker":
        alter(shop, "max.message.bytes", "1000")
    letters = "string_agg(md5(n::text), '')"
    shop.sql.execute(f"INSERT INTO t (id, note) SELECT 2, {letters} FROM generate_series(1, {size}) n")
    detail = wait_for_state(shop, SourceState.FAILED)
    assert "Message size too large" in detail
    assert "; raise max.message.bytes of the topic" in detail
    others_go_on(shop)
    word = shop.status("t").current_at  # type: ignore[union-attr]
    others_go_on(shop)
    assert shop.status("t").current_at == word  # type: ignore[union-attr]
    shop.sql.execute("UPDATE t SET note = 'short' WHERE id = 2")
    shop.wait_for("t", b"1", b"2")
    wait_for_state(shop, SourceState.RUNNING)


def test_the_topic_alone_says_how_large_a_record_may_be(shop: Shop) -> None:
    """Kafka's own limits are 1,048,576 bytes of a producer and 1,048,588 of a topic; librdkafka's is 1,000,000."""
    shop.sql.execute("ALTER TABLE t ADD COLUMN note text")
    follow(shop)
    letters = "string_agg(md5(n::text), '')"
    for number, size in (2, 32_000), (3, 100_000):
        shop.sql.execute(f"INSERT INTO t (id, note) SELECT {number}, {letters} FROM generate_series(1, {size}) n")
        shop.wait_for("t", *(b"%d" % n for n in range(1, number + 1)))
        alter(shop, "max.message.bytes", "10000000")


def alter(shop: Shop, name: str, value: str) -> None:
    """Set a topic's setting, as an operator would."""
    entry = ConfigEntry(name, value, incremental_operation=AlterConfigOpType.SET)
    resource = ConfigResource(ResourceType.TOPIC, f"{shop.prefix}t", incremental_configs=[entry])
    admin = new_admin({"bootstrap.servers": shop.kafka.bootstrap})
    admin.incremental_alter_configs([resource])[resource].result()
