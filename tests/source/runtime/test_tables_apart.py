"""What fails of one table stops that table alone: its schema is refused, its registry hangs, its offset is damaged."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from http.server import BaseHTTPRequestHandler
from typing import Any

import pytest

from compactory.errors import CompactoryError
from compactory_connectors.backoff import Backoff
from compactory_connectors.connect.converters import schema_registry
from compactory_connectors.kafka.publisher import Publisher
from compactory_connectors.source.offsets.offset import offset_key
from compactory_connectors.source.offsets.topics import OFFSETS_TOPIC, ensure_topics
from compactory_connectors.source.operations.preview import preview
from compactory_connectors.source.runtime import schedule
from compactory_connectors.source.status.status import SourceState
from tests.source.poller import config, settings
from tests.source.runtime.test_tables import Shop
from tests.source.workload import wait_until
from tests.stack.schema_registry import serving

AVRO = "io.confluent.connect.avro.AvroConverter"


class Registry(BaseHTTPRequestHandler):
    """Refuses the schema of the table ``refused``, and says nothing of that of ``silent`` until it is released."""

    status = 409
    released: threading.Event
    asked: list[str]

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        self.asked.append(self.path)
        if "silent" in self.path:
            self.released.wait(60)
        status = self.status if "refused" in self.path else 200
        answer = json.dumps({"id": 41} if status == 200 else {"error_code": status * 100 + 1, "message": "refused"})
        self.send_response(status)
        self.send_header("Content-Type", "application/vnd.schemaregistry.v1+json")
        self.send_header("Content-Length", str(len(answer)))
        self.end_headers()
        with suppress(BrokenPipeError):  # the source has stopped waiting
            self.wfile.write(answer.encode())

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002
        """Nothing."""


@pytest.fixture
def registry() -> Iterator[tuple[type[Registry], str]]:
    """A registry, and its address."""
    kind = type("Registry", (Registry,), {"released": threading.Event(), "asked": []})
    with serving(kind) as port:
        yield kind, f"http://127.0.0.1:{port}"
        kind.released.set()


@pytest.fixture
def shop(database: str, kafka: str, unique: Callable[[str], str]) -> Iterator[Shop]:
    """A database whose table ``t`` has one row."""
    shop = Shop(database, kafka, f"{unique('a')}-")
    shop.table("t", 1)
    yield shop
    shop.close()


def failed(shop: Shop, table: str, said: str) -> None:
    """Wait until the status says of a table that it failed, and why."""
    wait_until(
        lambda: (found := shop.status(table)) and found.state is SourceState.FAILED and said in (found.detail or ""),
        20,
        f"{said} of {table}",
    )


@pytest.mark.parametrize("status", [409, 422, 503])
def test_a_registry_refuses_one_schema(shop: Shop, registry: tuple[type[Registry], str], status: int) -> None:
    """Guarantee 12: the other tables are sent, and the refused one as soon as its schema is taken."""
    kind, address = registry
    kind.status = status
    shop.table("refused", 1)
    running = shop.start(value__converter=AVRO, value__converter__schema__registry__url=address,
                         value__converter__schemas__enable=None)  # fmt: skip
    shop.wait_for("t", b"1")
    failed(shop, "refused", f"Schema Registry: subject {shop.prefix}refused-value: ")
    shop.add("t", 2)
    shop.wait_for("t", b"1", b"2")
    kind.status = 200
    shop.wait_for("refused", b"1")
    running.stop()


def test_a_registry_that_hangs_keeps_no_other_table_waiting(
    shop: Shop, registry: tuple[type[Registry], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Guarantee 12: it is given a second here, and asked again after a pause; meanwhile others are sent."""
    kind, address = registry
    monkeypatch.setattr(schema_registry, "_SECONDS", 1)
    monkeypatch.setattr(schema_registry, "_PAUSE", 1.0)
    monkeypatch.setattr(schedule, "Backoff", lambda first, limit: Backoff(first=first / 4, limit=first))
    shop.table("silent", 1)
    shop.table("silent_too", 1)
    running = shop.start(key__converter=AVRO, key__converter__schema__registry__url=address)
    failed(shop, "silent", "Schema Registry")
    failed(shop, "silent_too", "Schema Registry")
    shop.add("t", 2)
    wait_until(lambda: len(shop.keys("t")) == 2, 60, "the other table's rows")
    kind.released.set()
    wait_until(lambda: shop.keys("silent_too") and shop.keys("silent"), 30, "the tables that waited")
    running.stop()


def test_an_offset_that_cannot_be_read_stops_its_table_alone(shop: Shop) -> None:
    """Guarantee 12: of a table that comes while the source runs."""
    running = shop.start()
    shop.wait_for("t", b"1")
    ensure_topics(shop.kafka, {}, create=True)
    key = offset_key(shop.prefix, shop.sql.info.dbname, "public", "damaged")
    publisher = Publisher(shop.kafka, f"{shop.prefix}editor", OFFSETS_TOPIC)
    publisher.open()
    publisher.amend([(key, b'{"pages": 5}', [])])
    publisher.close()
    shop.table("damaged", 1)
    failed(shop, "damaged", "the offset of public.damaged in topic 'compactory-offsets' can't be read")
    shop.add("t", 2)
    shop.wait_for("t", b"1", b"2")
    assert not shop.keys("damaged")
    running.stop()


@pytest.mark.parametrize("named", [False, True])
def test_a_failed_table_is_logged_without_values(shop: Shop, named: bool, capsys: pytest.CaptureFixture[str]) -> None:
    """Values never appear in logs; a row's primary key where ``errors.log.include.messages`` asks for it."""
    shop.sql.execute("CREATE TABLE years (id int8 PRIMARY KEY, at date,"
                     " changed timestamp NOT NULL DEFAULT timezone('utc', clock_timestamp()))")  # fmt: skip
    shop.sql.execute("INSERT INTO years (id, at) VALUES (8150377, 'infinity')")
    running = shop.start(errors__log__include__messages=str(named).lower())
    failed(shop, "years", "")
    shop.wait_for("t", b"1")
    running.stop()
    logged = capsys.readouterr()
    assert "table failed" in logged.out + logged.err
    assert ("8150377" in logged.out + logged.err) is named


@pytest.mark.parametrize("expression", ["note::int", "('hunter2' || note)::uuid", "1 / (id - 1)"])
def test_a_refused_statement_shows_no_values(shop: Shop, expression: str) -> None:
    """Neither the server's LINE, nor its DETAIL, nor what it quotes."""
    shop.sql.execute("ALTER TABLE t ADD COLUMN note text DEFAULT 'hunter2'")
    written = settings(shop.url, "bulk", query=f"SELECT id, {expression} AS v FROM t", topic__prefix=f"{shop.prefix}q")
    with pytest.raises(CompactoryError, match=r"refused a statement: .*SQLSTATE 22") as refused:
        preview(config(written), limit=5)
    assert "hunter2" not in str(refused.value)
    assert "LINE" not in str(refused.value)
