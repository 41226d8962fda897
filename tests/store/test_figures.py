"""Guarantee 7: what a store shows of itself to Prometheus, and when it asks to be restarted."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from compactory import Directory, GlobalStore, RocksDB
from compactory.prometheus import StoreCollector
from tests.stack.apache_kafka import ApacheKafka
from tests.store.pausing import paused
from tests.store.topics import Topics, eventually, send

Opener = Callable[..., GlobalStore]
Figures = Callable[..., float | None]
PER_PARTITION = ("position", "high_watermark", "lag", "entries")


def registered(store: GlobalStore) -> Figures:
    """Figures by name and labels, as a service's own registry has them."""
    registry = CollectorRegistry()
    registry.register(StoreCollector(store))

    def figure(name: str, **labels: str) -> float | None:
        return registry.get_sample_value(f"compactory_store_{name}", labels)

    return figure


def test_a_registry_of_the_service_shows_the_store_before_while_and_after_it_loads(topics: Topics, kafka: str) -> None:
    """Guarantee 7: position against high watermark is the progress; nothing has to be started to register."""
    name = topics.create(partitions=2)
    topics.produce(name, *((f"k{number}", "{}") for number in range(6)))
    store = GlobalStore(kafka, [name])
    figure = registered(store)
    assert (figure("ready"), figure("live"), figure("loading_ratio")) == (0, 1, 0)
    assert figure("start_seconds") is None
    assert figure("data_age_seconds") is None
    with topics.transaction() as producer:
        send(producer, name, [("inside", "{}")], partition=1)
        starting = threading.Thread(target=store.start, daemon=True)
        starting.start()
        first, second = {"topic": name, "partition": "0"}, {"topic": name, "partition": "1"}
        eventually(lambda: figure("position", **first) == 6 and figure("high_watermark", **second) == 1)
        assert figure("high_watermark", **first) == 6
        assert (figure("position", **second), figure("lag", **second)) == (0, 1)
        assert figure("loading_ratio") == pytest.approx(6 / 7)
        assert (figure("ready"), figure("live")) == (0, 1)
        producer.commit_transaction(10)
    starting.join(20)
    assert (figure("ready"), figure("live"), figure("loading_ratio")) == (1, 1, 1)
    assert [figure(each, **first) for each in PER_PARTITION] == [6, 6, 0, 6]
    assert figure("start_seconds") == store.load_seconds
    assert 0 <= (figure("data_age_seconds") or 0) < 10
    topics.produce(name, ("bad", "{"))
    store.barrier()
    assert (figure("errors_total"), figure("errors_outstanding")) == (1, 1)
    store.skip(*store.quarantine())
    assert (figure("errors_total"), figure("errors_outstanding")) == (1, 0)
    store.close()
    assert (figure("ready"), figure("live")) == (0, 0)


def test_each_family_is_there_once_whatever_there_is_of_partitions(topics: Topics, open_store: Opener) -> None:
    """Guarantee 7: the exposition is well-formed."""
    name = topics.create(partitions=3)
    store = open_store(Directory("a", topic=name), Directory("b", topic=name, key="id"))
    registry = CollectorRegistry()
    registry.register(StoreCollector(store))
    families = list(text_string_to_metric_families(generate_latest(registry).decode()))
    names = [family.name for family in families]
    assert len(names) == len(set(names))
    assert all(each.startswith("compactory_store_") for each in names)


def test_a_store_on_disk_tells_its_size(topics: Topics, open_store: Opener, tmp_path: Any) -> None:
    """Guarantee 7: the figures of the backend, by topic."""
    name = topics.create()
    topics.produce(name, ("a", "{}"))
    figure = registered(open_store(name, backend=RocksDB(tmp_path)))
    assert (figure("backend_disk_bytes", topic=name) or 0) > 0
    assert figure("backend_background_errors", topic=name) == 0


def test_a_decoder_that_hangs_asks_for_a_restart(topics: Topics, open_store: Opener) -> None:
    """Guarantee 7: consuming time-out. Lookups are answered meanwhile, and it is live again when the batch is done."""
    release = threading.Event()

    def decode(value: bytes) -> bytes:
        if value == b"hang":
            release.wait(30)
        return value

    name = topics.create()
    topics.produce(name, ("a", "1"))
    store = open_store(Directory(name, decode=decode), applying_timeout=0.5)
    try:
        assert store.live
        topics.produce(name, ("b", "hang"))
        eventually(lambda: not store.live)
        assert store.ready
        assert store[name]["a"] == b"1"
    finally:
        release.set()
    eventually(lambda: store.live)
    store.barrier()
    assert store[name]["b"] == b"hang"


def test_a_thread_that_does_not_ask_kafka_asks_for_a_restart(topics: Topics, open_store: Opener) -> None:
    """Guarantee 7: polling time-out."""
    name = topics.create()
    store = open_store(name, polling_timeout=1.5)
    release = threading.Event()
    blocking = threading.Thread(target=lambda: store._reader.run(lambda: release.wait(30), 30), daemon=True)
    try:
        eventually(lambda: store.live)
        blocking.start()
        eventually(lambda: not store.live)
        assert store.ready
    finally:
        release.set()
    eventually(lambda: store.live)
    blocking.join(10)


def test_a_broker_that_is_away_for_long_never_asks_for_a_restart(own_kafka: ApacheKafka, topics: Topics) -> None:
    """Guarantee 7: the time-outs are about this process; a restart would not bring the broker back."""
    name = topics.create()
    topics.produce(name, ("a", "{}"))
    with GlobalStore(topics.address, [name], polling_timeout=2, applying_timeout=2) as store:
        figure = registered(store)
        with paused(own_kafka):
            seen = set()

            def aged() -> bool:
                seen.add(store.live)
                return (figure("data_age_seconds") or 0) > 6

            eventually(aged)
            assert seen == {True}
            assert (figure("live"), figure("ready")) == (1, 1)
        eventually(lambda: (figure("data_age_seconds") or 99) < 5, 30)
