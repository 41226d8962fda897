"""The promise of the source under stress: whatever the writers do and however often it is killed, topic = table."""

from __future__ import annotations

import json
import random
import time
from collections import Counter
from pathlib import Path

import psycopg
import pytest

from compactory_connectors.kafka.topic_reader import read
from compactory_connectors.schema import Adoption, adopt, install
from tests.source.child import Child
from tests.source.conftest import ARTICLE, Bench, article_environment
from tests.source.proof import LONG, PROOF
from tests.source.workload import PlainCursor, Writers, table_state, wait_until


@pytest.mark.parametrize("seconds", [pytest.param(6, id="short"), LONG])
@pytest.mark.parametrize("adopted", [False, pytest.param(True, marks=PROOF)], ids=["as-it-is", "adopted"])
def test_the_topic_ends_as_the_table(
    bench: Bench, adopted: bool, seconds: float, seeded: random.Random, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    """Guarantees 8, 9, 10: 8 writers and a transaction open for seconds, kill -9 of the source in between.

    The same history makes a plain (timestamp, id) cursor lose rows. No record is published twice.
    """
    bench.sql.execute("INSERT INTO terminal_acquirer (terminal_id, acquirer_id)"
                      " SELECT 'T' || n, 'A' || -n FROM generate_series(1, 300) n")  # fmt: skip
    if adopted:
        bench.sql.execute("DROP TRIGGER stamp ON terminal_acquirer")
        with psycopg.connect(bench.url, autocommit=True) as connection:
            install(connection)
            adopt(connection, Adoption(table="terminal_acquirer", key=("terminal_id",), active="is_active"))
    config = json.loads(ARTICLE.read_text()) | {
        "compactory.soft.delete.column": "is_active",
        "poll.interval.ms": "50",
        "batch.max.rows": "40",  # large polls are cut into several Kafka transactions
    }
    environment = article_environment(bench.url, bench.prefix)
    source = Child(tmp_path / f"{bench.prefix}.json", config, bench.kafka.bootstrap, environment)
    writers, cursor = Writers(bench.url, seeded), PlainCursor(bench.url)
    request.addfinalizer(source.end)
    source.start()
    ends = time.monotonic() + seconds
    with cursor.polling(), writers.writing():
        while time.monotonic() < ends or source.kills < 2:  # each start waits for the lease of the one before
            before = len(bench.records())
            wait_until(lambda: len(bench.records()) > before + seeded.randint(200, 900), what="progress")  # noqa: B023
            source.kill()
            source.start()
    source.kill()
    source.finish()
    state = table_state(bench.url)
    topic = _topic(bench)
    assert topic == {number: acquirer for number, (acquirer, active) in state.items() if active}
    assert any(cursor.state.get(number) != now for number, now in state.items()), "a plain cursor got through this"
    assert source.kills >= 3
    _assert_sent_once(bench)


def _topic(bench: Bench) -> dict[int, str]:
    latest: dict[int, str] = {}
    for key, value in bench.records():
        if value is None:
            latest.pop(int(key), None)
        else:
            latest[int(key)] = json.loads(value)["acquirerId"]
    return latest


def _assert_sent_once(bench: Bench) -> None:
    """Every value written is unique in time, so the same bytes twice are the same change twice."""
    sent = Counter(
        (message.key(), message.value()) for message in read(bench.kafka, bench.topic) if message.value() is not None
    )
    twice = [key for (key, _), count in sent.items() if count > 1]
    assert not twice, f"{len(twice)} of {sent.total()} records were sent twice: {twice[:5]}"
