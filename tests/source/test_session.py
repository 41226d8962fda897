"""Sessions and their publisher under bad circumstances: full queues, rivals, garbage, changes of the table, stops."""

from __future__ import annotations

import gc
from collections.abc import Callable
from pathlib import Path

import pytest

from compactory.kafka import Kafka
from compactory_connectors.source.publisher import Publisher
from compactory_connectors.source.topics import OFFSETS_TOPIC, ensure, read


@pytest.fixture
def topic(kafka: str, unique: Callable[[str], str]) -> str:
    name = unique("t")
    ensure(Kafka(kafka), {name: (1, 1)}, create=True)
    return name


@pytest.mark.parametrize("transactions", [True, False])
def test_a_page_larger_than_the_producers_queue(kafka: str, topic: str, transactions: bool) -> None:
    """The user's own queue.buffering.max.messages slows a page down and does not end the source."""
    small = {"queue.buffering.max.messages": 10, "batch.num.messages": 2}
    publisher = Publisher(Kafka(kafka), topic, OFFSETS_TOPIC, transactions=transactions, overrides=small)
    publisher.open()
    publisher.publish(topic, [(b"%d" % number, b"x") for number in range(2000)], (topic.encode(), b"offset"))
    publisher.close()
    assert len(list(read(Kafka(kafka), topic))) == 2000


def test_a_closed_publisher_leaves_no_threads(kafka: str, topic: str) -> None:
    """Outages open one after the other; the cyclic garbage collector may not run for long."""
    _open_and_close(kafka, topic)
    before = _threads()
    gc.disable()
    try:
        for _ in range(5):
            _open_and_close(kafka, topic)
        assert _threads() <= before + 2
    finally:
        gc.enable()


def _open_and_close(kafka: str, topic: str) -> None:
    publisher = Publisher(Kafka(kafka), topic, OFFSETS_TOPIC)
    publisher.open()
    publisher.close()


def _threads() -> int:
    return len(list(Path("/proc/self/task").iterdir()))
