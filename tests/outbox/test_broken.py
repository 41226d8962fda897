"""Each part that keeps the outbox right, taken out: the same histories end wrong, so the tests above would see it."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace

import psycopg
import pytest

from compactory_connectors.outbox import OutboxMessage
from compactory_connectors.outbox.sender import Sender
from compactory_connectors.outbox.sent_ids import SentMarks
from compactory_connectors.postgres.position import Position
from tests.outbox.harness import Bench
from tests.outbox.mortal import BATCH
from tests.source.workload import wait_until


def messages(topic: str) -> list[OutboxMessage]:
    return [OutboxMessage(topic=topic, payload=f"{n}", key="k") for n in range(BATCH * 3)]


def published(bench: Bench) -> str:
    topic = bench.topic()
    with bench.sql.transaction():
        bench.outbox.publish_list(bench.sql, messages(topic))
    return topic


def test_without_the_fence_a_frozen_holder_sends_again(
    bench: Bench, impatient: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Sender, "_fence", lambda *_: {})
    topic = published(bench)
    mortal = bench.mortal("before begin", "SIGSTOP")
    wait_until(mortal.stopped, what="the signal")
    bench.relay(batch=BATCH)
    wait_until(lambda: bench.left() == 0, what="the take-over")
    mortal.resume()
    wait_until(lambda: len(bench.sent(topic)) > BATCH * 3, what="what is sent twice")


def test_without_the_ids_of_the_last_transaction_it_is_sent_again(
    bench: Bench, impatient: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(SentMarks, "last", lambda *_: {})
    topic = published(bench)
    mortal = bench.mortal("after commit")
    wait_until(mortal.ended, what="the signal")
    bench.relay(batch=BATCH)
    wait_until(lambda: bench.left() == 0, what="the take-over")
    assert len(bench.sent(topic)) == BATCH * 4


def test_without_the_running_transactions_a_late_commit_is_left_behind(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    after: Callable[..., Position] = Position.after

    def forgetful(self: Position, running: Iterable[int], newest: int, last: int | None) -> Position:
        return replace(after(self, running, newest, last), running={})

    monkeypatch.setattr(Position, "after", forgetful)
    topic = bench.topic()
    relay = bench.relay()
    with psycopg.connect(bench.url) as late:
        bench.outbox.publish(late, topic, "late", key="l")
        for value in "ab":
            bench.publish(topic, value)
            wait_until(lambda value=value: bench.values(topic)[-1:] == [value], what=value)
        late.commit()
    bench.publish(topic, "c")
    bench.wait_for(topic, "a", "b", "c")
    assert relay.stop()
    assert bench.left() == 1
