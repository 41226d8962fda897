"""Guarantee 1: a directory none of whose records is usable is not ready, and says why; a typo is no empty directory."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from threading import Thread
from typing import Any

import pytest
from pydantic import BaseModel

from compactory import Directory, GlobalStore, Index, RocksDB, StartTimeout, StoreState
from compactory.store_worker import StoreWorker
from compactory.table.unusable import missing_field_warnings, unusable_reason
from tests.store.ingest.test_rebuild import recreate
from tests.store.tables import Log
from tests.store.topics import Topics, eventually

Opener = Callable[..., GlobalStore]
SEEN = "; fields seen: terminalId, isActive, limits"
ROW = '{"terminalId":"T1","isActive":true,"limits":{"day":5}}'


@dataclass
class Terminal:
    terminalID: str  # noqa: N815 (as a user may misspell it)
    day: int = 0


class Model(BaseModel):
    terminalID: str  # noqa: N815


@pytest.mark.parametrize(
    ("options", "value", "said"),
    [
        ({"key": "terminalID"}, ROW,
         f"key field 'terminalID' is missing in all of them{SEEN}; did you mean 'terminalId'?"),
        ({"key": "isActive"}, ROW, "key field 'isActive' is bool in all of them" + SEEN),
        ({}, "\0\0\0", "the value is not JSON in all of them"),
        ({}, "[1]", "the value is JSON of type list in all of them"),
        (
            {"envelope": "connect"}, ROW,
            "the value has no 'payload', so it is not in a Connect envelope (schemas.enable=true) in all of them"
            + SEEN,
        ),
        (
            {"key": "id"}, '{"schema":{},"payload":{"id":1}}',
            "key field 'id' is missing in all of them; fields seen: schema, payload; set envelope=\"connect\"",
        ),
        ({"decode": Terminal}, ROW,
         "Object missing required field `terminalID` in all of them" + SEEN),
        ({"decode": Model}, ROW, "ValidationError of Model (terminalID: missing) in all of them" + SEEN),
        ({"decode": int}, "secret", "ValueError of int in all of them"),
        ({"indexes": [Index("limits")]}, ROW, "index field 'limits' holds dict in all of them" + SEEN),
    ],
)  # fmt: skip
def test_why_none_is_usable(options: dict[str, Any], value: str, said: str) -> None:
    """Names of fields are told, values never are."""
    log = Log(Directory("d", **options))
    log.load([(b"%d" % number, value.encode(), 1) for number in range(2003)])
    assert unusable_reason(log.table) == f"0 of 2,003 records usable: {said}"
    log.delete("0")
    assert str(unusable_reason(log.table)).startswith("0 of 2,002")


def test_what_is_usable() -> None:
    """Nothing, tombstones, inactive rows, one good record among bad ones."""
    directory = Directory("d", key="id", active="isActive")
    for records in ([], [("a", None)], [("a", '{"id":"a","isActive":false}'), ("b", "bad")], [("a", '{"id":1}')]):
        log = Log(directory)
        for key, value in records:
            log.put(key, value)
        assert unusable_reason(log.table) is None
    log = Log(directory)
    log.load([(b"a", b"bad", 1), (b"b", b'{"id":1}', 1)])
    assert unusable_reason(log.table) is None
    log = Log(directory)
    log.put("a", "bad")
    log.delete("a")
    assert unusable_reason(log.table) is None, "nothing living is bad"
    log = Log(Directory("d", key="ID", active="isActive"))
    log.put("a", '{"id":"a","isActive":true}')
    log.put("b", '{"id":"b","isActive":false}')
    assert "'ID' is missing" in str(unusable_reason(log.table)), "an inactive row without the key proves nothing"


def test_fields_that_no_entry_has() -> None:
    """An index over one finds nothing, and an active field that is misspelt deletes nothing."""
    log = Log(
        Directory("d", indexes=[Index("terminalId"), Index("acquirerID"), Index("terminalId", "day")], active="active")
    )
    assert missing_field_warnings(log.table) == []
    log.put("a", ROW)
    seen = SEEN
    assert missing_field_warnings(log.table) == [
        f"index 'acquirerID' finds nothing: no entry has a value in 'acquirerID'{seen}",
        f"index 'terminalId_day' finds nothing: no entry has a value in 'day'{seen}",
        f"no entry counts as deleted: none has a value in 'active'{seen}; did you mean 'isActive'?",
    ]


def too_late(store: GlobalStore) -> None:
    with pytest.raises(StartTimeout):
        store.start()


@pytest.mark.parametrize("disk", [False, True])
def test_a_typo_in_the_key_is_not_ready(
    topics: Topics, kafka: str, caplog: pytest.LogCaptureFixture, tmp_path: Path, disk: bool
) -> None:
    """Guarantee 1: start times out and says why, status and probe too; a restart from disk does not forget it."""
    name = topics.create()
    topics.produce(name, ("1", ROW), ("2", ROW), ("3", None))
    why = "0 of 2 records usable: key field 'terminalID' is missing in all of them; fields seen: terminalId,"
    directory = Directory("terminals", topic=name, key="terminalID")
    for _ in range(2 if disk else 1):
        store = GlobalStore(kafka, [directory], stall_timeout=6, backend=RocksDB(tmp_path) if disk else None)
        starting = Thread(target=too_late, args=[store])
        starting.start()
        worker = StoreWorker(store)
        eventually(lambda worker=worker: any("0 of 2" in item.get("reason", "") for item in worker.blocking()))
        [item] = [item for item in worker.blocking() if "reason" in item]
        assert item["directory"] == "terminals"
        assert item["reason"].startswith(why)
        [row] = worker.directories()
        assert (row["state"], row["bad_records"]) == ("loading", 2)
        assert row["unusable"].startswith(why)
        starting.join(30)
        assert store.state is StoreState.FAILED
        assert f"directory terminals: {why}" in str(store.failure)
        assert "T1" not in caplog.text
        errors = [record.getMessage() for record in caplog.records if record.levelno == logging.ERROR]
        assert sum(why in error for error in errors) == 1
        caplog.clear()
        store.close()


def test_the_first_usable_record_makes_it_ready(topics: Topics, kafka: str) -> None:
    """Guarantee 1: and from then on it stays ready, whatever comes (guarantee 7)."""
    name = topics.create()
    topics.produce(name, ("1", "bad"))
    store = GlobalStore(kafka, [name])
    starting = Thread(target=store.start)
    starting.start()
    eventually(store.blocking)
    eventually(store.unusable)
    topics.produce(name, ("2", "{}"))
    starting.join(20)
    assert store.ready
    store.wait_for(*topics.produce(name, ("2", "bad"), ("3", "bad")))
    assert store.state is StoreState.READY
    assert store.unusable() == {}
    assert store.outstanding() == {name: 3}
    store.close()


def test_an_option_serves_it(topics: Topics, open_store: Opener, caplog: pytest.LogCaptureFixture) -> None:
    """Guarantee 1: who wants a service without entries can have it; the status says so still."""
    name, empty, deleted = topics.create(), topics.create(), topics.create()
    topics.produce(name, ("1", "bad"))
    topics.produce(deleted, ("1", None))
    store = open_store(name, unusable_directory="serve")
    assert store.ready
    assert "the value is not JSON" in store.unusable()[name]
    assert "served all the same" in caplog.text
    assert open_store(empty, deleted, unusable_directory="hold").ready, "without the option too"


def test_a_topic_that_is_read_anew_and_unusable(topics: Topics, open_store: Opener) -> None:
    """Guarantee 7: what is served goes on being served, as stale, and says why."""
    name = topics.create()
    topics.produce(name, ("1", ROW))
    store = open_store(name, unusable_directory="hold")
    recreate(topics, name)
    topics.produce(name, ("1", "bad"), ("2", "bad"))
    eventually(lambda: "0 of 2 records usable" in store.stale().get(name, ""), 30)
    assert store.ready
    assert set(store[name]) == {"1"}
    topics.produce(name, ("1", "{}"))
    eventually(lambda: store.state is StoreState.READY, 30)
    assert store[name]["1"] == {}


def test_an_index_over_a_field_that_is_not_there_is_warned_of(
    topics: Topics, open_store: Opener, caplog: pytest.LogCaptureFixture
) -> None:
    name = topics.create()
    topics.produce(name, ("1", ROW))
    open_store(Directory(name, indexes=[Index("terminalID")]))
    assert "index 'terminalID' finds nothing" in caplog.text
    assert "did you mean 'terminalId'?" in caplog.text
