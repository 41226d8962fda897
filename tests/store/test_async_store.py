"""AsyncGlobalStore: guarantees 6 and 7 for coroutines, on asyncio's own loop and on uvloop."""

from __future__ import annotations

import asyncio
import gc
import inspect
import threading
import time
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

import pytest
import uvloop

from compactory import (
    AsyncGlobalStore,
    ConfigError,
    Directory,
    DirectoryWriter,
    GlobalStore,
    NotReady,
    Partition,
    StoreClosed,
    StoreFailed,
    StoreState,
    Token,
    Unreachable,
    WaitTimeout,
    WriteFailed,
    testing,
)
from compactory.waiting import Waiting
from tests.stack.apache_kafka import ApacheKafka
from tests.store.pausing import paused
from tests.store.topics import Topics, eventually, send

R = TypeVar("R")
Run = Callable[[Coroutine[Any, Any, R]], R]
LOOPS: dict[str, Callable[[], asyncio.AbstractEventLoop]] = {
    "asyncio": asyncio.new_event_loop,
    "uvloop": uvloop.new_event_loop,
}


@pytest.fixture(params=LOOPS)
def run(request: pytest.FixtureRequest) -> Run[Any]:
    """Runs a coroutine to its end."""

    def run_to_its_end(coroutine: Coroutine[Any, Any, R]) -> R:
        with asyncio.Runner(loop_factory=LOOPS[request.param]) as runner:
            return runner.run(coroutine)

    return run_to_its_end


async def soon(condition: Callable[[], Any], timeout: float = 60.0) -> None:
    """Wait in the loop until the condition holds."""
    async with asyncio.timeout(timeout):
        while not condition():
            await asyncio.sleep(0.002)


def listeners(store: AsyncGlobalStore) -> int:
    return len(store.sync._progress._listeners)


def extra_threads() -> set[str]:
    lasting = {"compactory-reader", "compactory-discovery"}
    return {thread.name for thread in threading.enumerate() if thread.name.startswith("compactory-")} - lasting


def test_it_has_the_names_of_the_store_and_its_parameters() -> None:
    """A name that is added to the one is missing in the other."""
    names = {name for name in dir(GlobalStore) if not name.startswith("_")}
    of_asyncio = {name for name in dir(AsyncGlobalStore) if not name.startswith("_")}
    assert names <= of_asyncio
    assert of_asyncio - names == {"of", "watch"}
    names &= of_asyncio
    waiting = {name for name in names if inspect.iscoroutinefunction(getattr(AsyncGlobalStore, name))}
    asked = {
        "start",
        "close",
        "barrier",
        "wait_for",
        "end_offsets",
        "snapshot",
        "retry",
        "skip",
    }
    assert waiting == asked
    for name in ("__init__", *names):
        one, other = getattr(GlobalStore, name), getattr(AsyncGlobalStore, name)
        if not isinstance(one, property):
            assert list(inspect.signature(one).parameters.values()) == list(
                inspect.signature(other).parameters.values()
            )
    assert AsyncGlobalStore.__getitem__.__annotations__ == GlobalStore.__getitem__.__annotations__


def test_reading_ones_own_writes(topics: Topics, run: Run[None]) -> None:
    """Guarantee 6: by token, by several tokens of two topics, by barrier."""
    one, two = topics.create(), topics.create(2)
    topics.produce(one, ("a", '{"n":-1}'))
    directory: Directory[dict[str, Any]] = Directory(one)

    async def main() -> None:
        async with AsyncGlobalStore(topics.address, [directory, two]) as store:
            assert (store.state, store.ready) == (StoreState.READY, True)
            assert store.directory(directory)["a"] == {"n": -1}
            for number in range(6):
                tokens = topics.produce(one, ("a", f'{{"n":{number}}}')) + topics.produce(two, ("b", "{}"), partition=1)
                await store.wait_for(*tokens)
                assert store[one]["a"] == {"n": number}
                topics.commit(two, ("b", f'{{"n":{number}}}'), partition=1)
                await store.barrier()
                assert store[two]["b"] == {"n": number}
            await store.wait_for()
            await store.barrier()  # the last commit's marker may be written after its producer was told
            ends = await store.end_offsets()
            await soon(lambda: store.positions() == ends)
            assert set(store.lag()) == {Partition(one, 0), Partition(two, 0), Partition(two, 1)}
            assert store.quarantine() == store.blocking() == []
            assert "AsyncGlobalStore" in repr(store)
        assert store.state is StoreState.CLOSED

    run(main())
    eventually(lambda: not extra_threads())


def test_a_thousand_waiters_hold_no_thread(topics: Topics, run: Run[None]) -> None:
    """Guarantee 6: each is woken by its own record; the store hears of nobody once all are gone."""
    name = topics.create()

    async def main() -> None:
        async with AsyncGlobalStore(topics.address, [name]) as store:
            await soon(lambda: not extra_threads())
            before = threading.active_count()
            waits = [asyncio.create_task(store.wait_for(Token(name, 0, n % 5), timeout=90)) for n in range(1000)]
            await soon(lambda: len(store._waiting) == 1000)
            assert threading.active_count() == before
            assert listeners(store) == 1
            for number in range(5):
                assert sum(wait.done() for wait in waits) == 200 * number
                topics.produce(name, ("a", "{}"))
                await asyncio.gather(*waits[number::5])
            assert (len(store._waiting), listeners(store)) == (0, 0)

    run(main())


def test_a_waiter_waits_for_all_of_its_partitions(run: Run[None]) -> None:
    """Guarantee 6: in whatever order they get there, beside others that give up or whose loop is gone."""

    async def main() -> None:
        with testing.store({"a": {}, "b": {}}) as store:
            waiting = Waiting(store)
            a, b = Partition("a", 0), Partition("b", 0)
            targets = [{a: 2, b: 1}, {b: 1, a: 2}, {a: 1}, {b: 1}]
            waits = [asyncio.create_task(waiting.until(each, 90, "it")) for each in targets]
            late = asyncio.create_task(waiting.until({a: 99}, 0.01, "it"))
            abandoned = asyncio.new_event_loop()
            coroutine = waiting.until({a: 99}, 90, "it")
            await asyncio.to_thread(_leave_behind, abandoned, coroutine)
            await soon(lambda: len(waiting) == 5 and late.done())
            with pytest.raises(WaitTimeout):
                await late
            for directory, woken in (("a", [2]), ("b", [2, 3]), ("a", [0, 1, 2, 3])):
                store.put(directory, "k", {})
                await soon(lambda woken=woken: [n for n, wait in enumerate(waits) if wait.done()] == woken)
            assert len(waiting) == 0
            assert not store._progress._listeners
            coroutine.close()

    run(main())


def _leave_behind(loop: asyncio.AbstractEventLoop, coroutine: Coroutine[Any, Any, None]) -> None:
    """Begin to wait in a loop that is closed then."""

    async def begin() -> None:
        coroutine.send(None)

    loop.run_until_complete(begin())
    loop.close()


def test_barriers_at_a_time_share_a_question(topics: Topics, run: Run[None], monkeypatch: pytest.MonkeyPatch) -> None:
    """Guarantee 6: and it is one that was asked after the write, never one that was under way."""
    name = topics.create()

    async def main() -> None:
        async with AsyncGlobalStore(topics.address, [name]) as store:
            asked, ask = [], store.sync.end_offsets
            monkeypatch.setattr(store.sync, "end_offsets", lambda timeout: (asked.append(1), ask(timeout))[1])

            async def write_and_read(thread: int) -> None:
                for number in range(5):
                    key = f"k{thread}"
                    await asyncio.to_thread(lambda n=number, k=key: topics.produce(name, (k, f'{{"n":{n}}}')))
                    await store.barrier(timeout=20)
                    assert store[name][key] == {"n": number}

            await asyncio.gather(*(write_and_read(thread) for thread in range(3)))
            asked.clear()
            await asyncio.gather(*(store.barrier(timeout=20) for _ in range(500)))
            assert len(asked) == 1
            assert not store._end_requests
            await soon(lambda: not extra_threads())

    run(main())


def test_cancelling_leaves_nothing_behind(topics: Topics, run: Run[None]) -> None:
    """Guarantee 7."""
    name = topics.create()

    async def main() -> None:
        async with AsyncGlobalStore(topics.address, [name]) as store:
            for _ in range(3):
                waits = [asyncio.create_task(store.wait_for(Token(name, 0, 10**6), timeout=60)) for _ in range(50)]
                waits += [asyncio.create_task(store.barrier(timeout=60)) for _ in range(50)]
                await soon(lambda: len(store._waiting) >= 50)
                for wait in waits:
                    wait.cancel()
                done = await asyncio.gather(*waits, return_exceptions=True)
                assert all(isinstance(answer, asyncio.CancelledError) or answer is None for answer in done)
                assert (len(store._waiting), listeners(store)) == (0, 0)
                assert not store._end_requests
                await soon(lambda: not extra_threads())
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.05):
                    await store.wait_for(Token(name, 0, 10**6), timeout=60)
            assert (len(store._waiting), listeners(store)) == (0, 0)
            token = topics.produce(name, ("a", "{}"))[0]
            await store.wait_for(token)

    run(main())


def test_a_token_that_is_newer_than_what_the_store_knows_of_its_topic(topics: Topics, run: Run[None]) -> None:
    """Guarantee 6: the topic was created again, and the store hears of it by the token."""
    name = topics.create()
    topics.produce(name, *((f"a{number}", '{"from":"old"}') for number in range(50)))

    async def main() -> None:
        with DirectoryWriter(topics.address, Directory(name, writable=True), timeout=30) as writer:
            async with AsyncGlobalStore(topics.address, [name]) as store:
                old = store.topic_id(name)
                topics.delete(name)
                await soon(lambda: name not in topics.admin.list_topics(timeout=5).topics)
                topics.create(name=name)
                with pytest.raises(WriteFailed, match="deleted and created again"):
                    await asyncio.to_thread(writer.put, "b", {"from": "new"})
                token = await asyncio.to_thread(writer.put, "b", {"from": "new"})
                assert token.topic_id != old
                await store.wait_for(token, timeout=30)
                assert store[name]["b"] == {"from": "new"}
                await soon(lambda: set(store[name]) == {"b"})

    run(main())


def test_a_broker_that_does_not_answer(own_kafka: ApacheKafka, topics: Topics, run: Run[None]) -> None:
    """Guarantee 6: deadlines hold, whoever asks next to whom; a cancelled question ends by itself."""
    name = topics.create()

    async def main() -> None:
        async with AsyncGlobalStore(topics.address, [name]) as store:
            with paused(own_kafka):
                began = time.monotonic()
                patient = asyncio.create_task(store.barrier(timeout=60))
                hasty = [asyncio.create_task(store.barrier(timeout=0.3)) for _ in range(20)]
                answers = await asyncio.gather(*hasty, return_exceptions=True)
                assert {type(answer) for answer in answers} <= {Unreachable, WaitTimeout}
                assert 0.2 < time.monotonic() - began < 4
                cancelled = asyncio.create_task(store.barrier(timeout=1))
                await asyncio.sleep(0)
                cancelled.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await cancelled
                assert not patient.done()
            await patient
            assert (len(store._waiting), listeners(store), store._end_requests) == (0, 0, {})
            await soon(lambda: not extra_threads())

    run(main())


def test_deadlines_and_tokens_that_can_not_be_reached(topics: Topics, run: Run[None]) -> None:
    """Guarantee 6: the gap is told; what can never be is refused at once."""
    name = topics.create(2)

    async def main() -> None:
        async with AsyncGlobalStore(topics.address, [name]) as store:
            began = time.monotonic()
            with pytest.raises(
                WaitTimeout, match=rf"the token was not reached in 0\.[12]\d* s: behind in {name}:1 by 6"
            ) as late:
                await store.wait_for(Token(name, 1, 5), timeout=0.2)
            assert 0.19 <= time.monotonic() - began < 5
            assert late.value.gap == {Partition(name, 1): 6}
            for timeout in (0, -1):
                with pytest.raises(WaitTimeout, match="one of the tokens"):
                    await store.wait_for(Token(name, 1, 5), Token(name, 0, 5), timeout=timeout)
            with pytest.raises(ConfigError, match=f"it reads {name}"):
                await store.wait_for(Token("another", 0, 0), timeout=60)
            with pytest.raises(WaitTimeout, match="deleted since"):
                await store.wait_for(Token(name, 0, 0, "AAAAAAAAAAAAAAAAAAAAAQ"), timeout=60)
            with topics.transaction() as producer:
                send(producer, name, [("a", "{}")])
                with pytest.raises(WaitTimeout, match="the barrier was not reached"):
                    await store.barrier(timeout=0.4)
                producer.commit_transaction(10)
            await store.barrier()
            assert "a" in store[name]

    run(main())


@pytest.mark.parametrize("ending", ["death", "close"])
def test_waiters_are_woken_by_the_end(
    topics: Topics, run: Run[None], monkeypatch: pytest.MonkeyPatch, ending: str
) -> None:
    """Guarantee 7: each with an error of its own, and the cause kept."""
    name = topics.create()

    async def main() -> None:
        store = AsyncGlobalStore(topics.address, [name])
        await store.start()
        waits = [asyncio.create_task(store.wait_for(Token(name, 0, 10**6), timeout=60)) for _ in range(20)]
        await soon(lambda: len(store._waiting) == 20)
        if ending == "close":
            await store.close()
        else:
            monkeypatch.setattr(store.sync._reader, "_step", lambda consumer: 1 / 0)
        errors = await asyncio.wait_for(asyncio.gather(*waits, return_exceptions=True), 10)
        assert {type(error) for error in errors} == {StoreClosed if ending == "close" else StoreFailed}
        assert len({id(error) for error in errors}) == 20
        if ending == "death":
            assert {type(error.cause) for error in errors} == {ZeroDivisionError}
            assert isinstance(store.failure, ZeroDivisionError)
        for wait in (store.barrier(), store.wait_for(Token(name, 0, 0))):
            with pytest.raises((StoreClosed, StoreFailed)):
                await wait
        assert (len(store._waiting), listeners(store)) == (0, 0)
        await store.close()
        await store.close()

    run(main())


def test_before_it_is_started_nothing_waits(run: Run[None]) -> None:
    """Guarantee 1."""

    async def main() -> None:
        store = AsyncGlobalStore("127.0.0.1:1", ["d"], stall_timeout=0.5)
        for wait in (store.barrier(), store.wait_for(Token("d", 0, 0)), store.wait_for()):
            with pytest.raises(NotReady):
                await wait
        with pytest.raises(Unreachable):
            await store.start()
        await store.close()

    run(main())
    with pytest.raises(ConfigError, match="directories is empty"):
        AsyncGlobalStore("127.0.0.1:1", [])


def test_cancelling_a_start_closes_the_store(topics: Topics, run: Run[None]) -> None:
    """Guarantee 7: no thread goes on loading for nobody."""
    name = topics.create()

    async def main() -> None:
        with topics.transaction() as producer:
            send(producer, name, [("a", "{}")])
            store = AsyncGlobalStore(topics.address, [name])
            starting = asyncio.create_task(store.start())
            await soon(store.positions)
            starting.cancel()
            with pytest.raises(asyncio.CancelledError):
                await starting
            assert store.state is StoreState.CLOSED
            await soon(lambda: not extra_threads())
            producer.abort_transaction(10)

    run(main())


def test_no_loop_is_better_than_another(topics: Topics) -> None:
    """Started in one loop, waited for in two others at a time, closed in a fourth."""
    name = topics.create()
    store = AsyncGlobalStore(topics.address, [name])
    asyncio.run(store.start())
    answers: list[Any] = []

    def wait(factory: Callable[[], asyncio.AbstractEventLoop]) -> None:
        with asyncio.Runner(loop_factory=factory) as runner:
            runner.run(store.wait_for(Token(name, 0, 0), timeout=20))
            runner.run(store.barrier())
            answers.append(dict(store[name].items()))

    threads = [threading.Thread(target=wait, args=(factory,)) for factory in LOOPS.values()]
    for thread in threads:
        thread.start()
    eventually(lambda: len(store._waiting) == 2)
    assert listeners(store) == 1
    topics.produce(name, ("a", '{"n":1}'))
    for thread in threads:
        thread.join(20)
    assert answers == [{"a": {"n": 1}}] * 2
    assert listeners(store) == 0
    asyncio.run(store.close())
    assert store.state is StoreState.CLOSED


@pytest.mark.parametrize("factory", LOOPS.values(), ids=LOOPS)
def test_a_loop_that_is_closed_takes_its_waits_with_it(
    topics: Topics, factory: Callable[[], asyncio.AbstractEventLoop]
) -> None:
    """Guarantee 7: the reader is not disturbed, and others go on waiting."""
    name = topics.create()
    store = AsyncGlobalStore(topics.address, [name])
    asyncio.run(store.start())
    loop = factory()
    wait = loop.create_task(store.wait_for(Token(name, 0, 10**6), timeout=60))
    loop.run_until_complete(asyncio.sleep(0))
    loop.run_until_complete(soon(lambda: len(store._waiting) == 1))
    loop.close()
    [token] = topics.produce(name, ("a", "{}"))
    asyncio.run(store.wait_for(token))
    eventually(lambda: listeners(store) == 0)
    assert store.ready
    assert not wait.done()
    wait._log_destroy_pending = False  # type: ignore[attr-defined]  # its loop is gone on purpose
    del wait
    gc.collect()
    assert len(store._waiting) == 0
    asyncio.run(store.close())


def test_a_busy_pool_of_the_loop_does_not_hold_it_up(topics: Topics, run: Run[None]) -> None:
    name = topics.create()
    release = threading.Event()

    async def main() -> None:
        busy = [asyncio.create_task(asyncio.to_thread(release.wait, 60)) for _ in range(64)]
        try:
            async with AsyncGlobalStore(topics.address, [name]) as store:
                await store.barrier()
        finally:
            release.set()
            await asyncio.gather(*busy)

    run(main())


def test_a_snapshot_behind_a_slow_decoder_does_not_hold_the_loop_up(run: Run[None]) -> None:
    decoding, release = threading.Event(), threading.Event()
    released: list[bool] = []

    def decode(value: bytes) -> bytes:
        if value == b"slow":
            decoding.set()
            released.append(release.wait(10))
        return value

    async def main() -> None:
        sync = testing.store({Directory("d", decode=decode): {"a": b"quick"}})
        store = AsyncGlobalStore.of(sync)
        write = asyncio.create_task(asyncio.to_thread(sync.put, "d", "a", b"slow"))
        await soon(decoding.is_set)
        snapshot = asyncio.create_task(store.snapshot())
        await asyncio.sleep(0)  # it begins
        release.set()
        assert (await snapshot)["d"]["a"] == b"slow"
        await write
        await store.close()

    run(main())
    assert released[0], "the loop was silent as long as the decoder ran"
