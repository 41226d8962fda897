"""Processors on a real Kafka: outcomes, retries, poison, orders, several members, and deaths at each step."""

from __future__ import annotations

import asyncio
import getpass
import json
import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, TopicPartition

from compactory import ConfigError
from compactory.errors import CompactoryError, OrderRefused
from compactory.kafka.client import Kafka
from compactory_connectors.kafka.publisher import Publisher
from compactory_connectors.processors import (
    Event,
    Output,
    Processor,
    ProcessRunner,
    ProcessWorker,
    Refused,
    Retry,
    operators,
    processor,
)
from compactory_connectors.processors.pending import group_of
from tests.processors.harness import QUICK, Provider, committed, registration
from tests.processors.mortal import STEPS
from tests.source.proof import LONG
from tests.stack.apache_kafka import ApacheKafka
from tests.stack.command import run_command
from tests.store.topics import Topics, eventually


@dataclass
class Bench:
    """Topics of a chain, and the processes that run it."""

    kafka: str
    topics: Topics
    book: str
    name: str
    pending: str
    created: str
    failed: str
    mortals: list[subprocess.Popen[bytes]] = field(default_factory=list)

    def tenants(self, **values: Any) -> None:
        self.topics.produce(self.pending, *((key, json.dumps(value)) for key, value in values.items()))

    def runner(self, **rules: Any) -> ProcessRunner:
        settings = {"bootstrap.servers": self.kafka, "session.timeout.ms": 6000, "heartbeat.interval.ms": 500}
        chain = registration(self.name, self.pending, self.created, self.failed, self.book, **rules)
        return ProcessRunner(settings, chain)

    def mortal(self, *fated: str) -> subprocess.Popen[bytes]:
        places = [self.kafka, self.name, self.pending, self.created, self.failed, self.book]
        process = subprocess.Popen([sys.executable, "-m", "tests.processors.mortal", *places, *fated])
        self.mortals.append(process)
        return process

    def outcomes(self) -> dict[str, str]:
        found = {key: "created" for key, value in committed(self.kafka, self.created) if value}
        return found | {key: "failed" for key, value in committed(self.kafka, self.failed) if value}

    def once(self) -> None:
        """Each event has one outcome in the log, and each idempotency key was used for one tenant."""
        values = [value for topic in (self.created, self.failed) for _, value in committed(self.kafka, topic) if value]
        twice = {event: n for event, n in Counter(value["event"] for value in values).items() if n > 1}
        assert twice == {}
        assert {key: used for key, used in Provider(self.book).booked().items() if len(used) > 1} == {}


def tell(bench: Bench, *words: str, code: int = 0) -> str:
    done = run_command(["process", *words, "--kafka", bench.kafka], folder=Path.cwd(), environment=os.environ)
    assert done.returncode == code, done.stdout + done.stderr
    return done.stdout + done.stderr


@pytest.fixture
def bench(kafka: str, unique: Callable[[str], str], tmp_path: Path) -> Iterator[Bench]:
    topics = Topics(kafka, unique)
    made = Bench(kafka, topics, str(tmp_path / "book"), unique("chain"), *(topics.create(2) for _ in range(3)))
    yield made
    for process in made.mortals:
        with suppress(ProcessLookupError):
            process.send_signal(signal.SIGCONT)
        process.kill()
        process.wait()


def test_each_event_has_an_outcome_and_a_failing_one_does_not_hold_up_others(bench: Bench) -> None:
    bench.tenants(a={"flaky": 2}, b={}, c={"broke": True}, d={"flaky": 9}, e={"slow": True})
    with bench.runner() as runner:
        eventually(lambda: bench.outcomes().keys() >= {"a", "b", "c", "d"})
        bench.tenants(f={})
        eventually(lambda: "f" in bench.outcomes())
        assert "e" not in bench.outcomes()
        Path(f"{bench.book}.answers").touch()
        eventually(lambda: "e" in bench.outcomes())
    want = {"a": "created", "b": "created", "c": "failed", "d": "failed", "e": "created", "f": "created"}
    assert bench.outcomes() == want
    bench.once()
    [aside] = operators.stored_events(Kafka(bench.kafka), bench.name)
    assert (aside.key, aside.state, aside.attempts) == ("d", "failed", QUICK.max_attempts)
    reasons = {key: value["error"] for key, value in committed(bench.kafka, bench.failed) if value}
    assert reasons == {"c": "no money", "d": "ConnectionError"}  # the text of any other error may hold a secret
    assert aside.error == "ConnectionError"
    assert "harness.py" in str(aside.trace)
    assert "in register" in str(aside.trace)
    [row] = json.loads(tell(bench, "failed", bench.name, "--json", code=1))["events"]
    assert row["trace"] == aside.trace
    assert runner.board.events == 5


def test_a_result_that_can_not_be_written_fails_its_event_alone(bench: Bench) -> None:
    results: dict[str, Any] = {
        "set": {"x": {1}}, "list": [1], "exit": SystemExit(), "cancelled": asyncio.CancelledError(),
        "odd": ValueError("\ud800"), "number": lambda: Output(topic=bench.created, key=5, value=1),  # type: ignore[arg-type]
        "large": {"x": "y" * (3 << 20)}, "good": {},
    }  # fmt: skip

    def give(event: Event) -> Any:
        found = results[str(event.key)]
        if isinstance(found, BaseException):
            raise found
        return found() if callable(found) else found

    bench.tenants(**{key: {} for key in results})
    bench.topics.produce(bench.pending, ("undecoded", "{"))
    rules = {"retry": QUICK, "created": bench.created, "failed": bench.failed}
    with ProcessRunner(bench.kafka, Processor(function=give, name=bench.name, topic=bench.pending, **rules)) as runner:
        eventually(lambda: len(bench.outcomes()) == len(results) + 1 or not runner.alive)
    assert bench.outcomes() == {**dict.fromkeys(results, "failed"), "undecoded": "failed", "good": "created"}


def test_many_events_that_fail_do_not_hold_up_another_key(bench: Bench) -> None:
    """They wait in the topic of kept events, and other events are fetched all the same."""

    def note(event: Event) -> Output | None:
        if event.value["fails"] and event.attempt == 1:
            raise ConnectionError
        return Output(topic=bench.created, key=event.key, value=event.value)

    topic = bench.topics.create(1)
    failing = [(f"k{n}", '{"fails": true}') for n in range(1100)]
    bench.topics.produce(topic, *failing, ("good", '{"fails": false}'))
    again = Retry(first=3600.0, limit=3600.0)
    with ProcessRunner(bench.kafka, Processor(function=note, name=bench.name, topic=topic, retry=again)) as runner:
        eventually(lambda: committed(bench.kafka, bench.created))
        assert [key for key, _ in committed(bench.kafka, bench.created)] == ["good"]
        eventually(lambda: runner.board.waiting == 1100)
    quick = Processor(function=note, name=bench.name, topic=topic, retry=QUICK)
    kafka = Kafka(bench.kafka)
    kept = operators.stored_events(kafka, bench.name)
    assert (len(kept), {event.attempts for event in kept}, kept[0].value) == (1100, {1}, b'{"fails": true}')
    with closing(Publisher(kafka, "test", group_of(bench.name), transactions=False)) as publisher:  # the hour is over
        due = [(event.id.encode(), replace(event, due=0.0).data()) for event in kept]
        publisher.publish(group_of(bench.name), due, None)
    with ProcessRunner(bench.kafka, quick):
        eventually(lambda: len(committed(bench.kafka, bench.created)) == 1101)
    assert {key for key, _ in committed(bench.kafka, bench.created)} == {"good", *dict(failing)}


def test_coroutines_of_a_processor_share_one_loop(bench: Bench) -> None:
    """A client of aiohttp or asyncpg works on the loop that it was made on."""
    loops: list[asyncio.AbstractEventLoop] = []
    forever = asyncio.Event()

    @processor(bench.pending, name=bench.name)
    async def note(event: Event) -> None:
        loops.append(asyncio.get_running_loop())
        if event.key == "d":
            await forever.wait()

    bench.tenants(a={}, b={}, c={}, d={})
    with ProcessRunner(bench.kafka, note) as runner:
        eventually(lambda: len(loops) == 4 and runner.board.events == 3)
    assert len(set(loops)) == 1
    eventually(loops[0].is_closed)


def test_events_of_a_key_keep_their_order_through_retries(bench: Bench) -> None:
    seen: list[tuple[str | None, int]] = []

    def note(event: Event) -> Output | None:
        if event.value["flaky"] >= event.attempt:
            raise ConnectionError
        seen.append((event.key, event.value["n"]))
        return Output(topic=bench.created, key=event.key, value=event.value)

    bench.topics.produce(
        bench.pending, *((key, json.dumps({"n": n, "flaky": (n + 1) % 3})) for n in range(4) for key in "xy")
    )
    ordered = Processor(function=note, name=bench.name, topic=bench.pending, retry=QUICK)
    with ProcessRunner(bench.kafka, ordered):
        eventually(lambda: len(committed(bench.kafka, bench.created)) == 8)
    for key in "xy":
        assert [n for name, n in seen if name == key] == [0, 1, 2, 3]


def test_poison_is_set_aside_and_tried_again_by_order(bench: Bench) -> None:
    """What can't be decoded, what the function refuses, and outputs that Kafka refuses."""
    fixed: set[str] = set()

    @processor(bench.pending, name=bench.name, retry=QUICK)
    async def check(event: Event) -> Any:
        if event.key == "refused" and event.key not in fixed:
            raise Refused("never")
        size = 3 << 20 if event.key == "large" and event.key not in fixed else 1
        topic = "__transaction_state" if event.key == "elsewhere" else bench.created
        return [Output(topic=topic, key=event.key, value="x" * size)]

    bench.topics.produce(
        bench.pending, ("bad", "{"), ("refused", "{}"), ("large", "{}"), ("good", "{}"), ("elsewhere", "{}")
    )
    kafka = Kafka(bench.kafka)
    with ProcessRunner(bench.kafka, check) as runner:
        eventually(lambda: runner.board.is_ready)
        eventually(lambda: len(operators.stored_events(kafka, bench.name)) == 4)
        assert [key for key, _ in committed(bench.kafka, bench.created)] == ["good"]
        assert runner.alive
        aside = {parked.key: parked for parked in operators.stored_events(kafka, bench.name)}
        assert "DecodeError" in str(aside["bad"].error)
        assert aside["refused"].error == "Refused: never"
        assert "Topic authorization failed" in str(aside["elsewhere"].error)
        fixed |= {"refused", "large"}
        assert operators.retry(kafka, bench.name, [aside["refused"].id, aside["large"].id]) == 2
        eventually(lambda: {"refused", "large"} <= {key for key, _ in committed(bench.kafka, bench.created)})
        eventually(lambda: len(operators.stored_events(kafka, bench.name)) == 2)
        with pytest.raises(OrderRefused, match="not set aside: event "):
            operators.drop(kafka, bench.name, ["nobody"])
        assert "which events? give ids or --all" in tell(bench, "drop", bench.name, code=2)
        assert json.loads(tell(bench, "drop", bench.name, "--all", "--json")) == {"events": 2}
    assert operators.stored_events(kafka, bench.name) == []
    assert Counter(key for key, _ in committed(bench.kafka, bench.created)) == {"good": 1, "refused": 1, "large": 1}


def test_an_event_that_is_kept_and_read_again_is_handled_once(bench: Bench) -> None:
    """As after an operator has set the group's offset back."""
    bench.tenants(a={"flaky": 1})
    with bench.runner(retry=Retry(first=1.0)) as runner:
        eventually(lambda: runner.board.retries)
    consumer = Consumer({"bootstrap.servers": bench.kafka, "group.id": f"compactory-process-{bench.name}"})
    consumer.commit(offsets=[TopicPartition(bench.pending, part, 0) for part in range(2)], asynchronous=False)
    consumer.close()
    bench.tenants(b={})
    with bench.runner():
        eventually(lambda: bench.outcomes().keys() == {"a", "b"})
    bench.once()
    assert operators.stored_events(Kafka(bench.kafka), bench.name) == []


@pytest.mark.parametrize(
    "step", [step if "commit" in step else pytest.param(step, marks=pytest.mark.proof) for step in STEPS]
)
def test_killed_at_any_step(bench: Bench, step: str) -> None:
    """Guarantee 19: outputs and offset are committed together or not at all."""
    bench.tenants(**{f"t{n}": {"flaky": n % 2} for n in range(8)})
    first = bench.mortal(step, "SIGKILL")
    bench.tenants(**{f"t{n}": {"flaky": n % 2} for n in range(8, 80)})
    assert first.wait(60) == -signal.SIGKILL
    with bench.runner():
        eventually(lambda: len(bench.outcomes()) == 80)
    bench.once()


def test_a_frozen_process_writes_nothing_when_it_wakes(bench: Bench) -> None:
    """Guarantee 19: the group has gone on without it, and Kafka refuses what it commits."""
    bench.tenants(**{f"t{n}": {} for n in range(8)})
    zombie = bench.mortal("before the transaction", "SIGSTOP")
    bench.tenants(**{f"t{n}": {} for n in range(8, 80)})
    eventually(lambda: Path(f"/proc/{zombie.pid}/stat").read_text().rpartition(")")[2].split()[0] == "T")
    with bench.runner():
        eventually(lambda: len(bench.outcomes()) == 80)
        zombie.send_signal(signal.SIGCONT)
        bench.tenants(**{f"u{n}": {} for n in range(40)})
        eventually(lambda: len(bench.outcomes()) == 120)
    bench.once()


@pytest.mark.proof
def test_a_log_that_was_cut_off_and_has_grown_since(own_kafka: ApacheKafka, bench: Bench) -> None:
    """Guarantee 19: the offset is in the log, but it is not the log that was read; leader epochs tell (KIP-320)."""
    logs = [own_kafka.home / "data" / f"{bench.pending}-{part}" for part in range(2)]

    def restarted(change: Callable[[Path, Path], object]) -> None:
        own_kafka.stop()
        for log in logs:
            change(log, own_kafka.home / log.name)
        own_kafka.start()

    def handled(*keys: str) -> None:
        bench.tenants(**{key: {} for key in keys})
        with bench.runner():
            eventually(lambda: bench.outcomes().keys() >= {*keys})

    handled("a", "b", "c", "d")
    restarted(shutil.copytree)
    handled("e", "f", "g", "h")  # another leader alone means nothing
    restarted(lambda log, backup: (shutil.rmtree(log), shutil.move(backup, log)))
    bench.tenants(**{f"i{n}": {} for n in range(40)})
    with bench.runner() as runner, pytest.raises(CompactoryError, match="was truncated"):
        runner.wait(30)


@pytest.mark.parametrize("seconds", [LONG])
def test_long_histories_of_members_that_die_and_freeze(bench: Bench, seeded: random.Random, seconds: float) -> None:
    """Guarantee 19: of three members one is killed, ended, or frozen until the group has gone on, again and again."""
    written, until = 0, time.monotonic() + seconds

    def alive() -> list[subprocess.Popen[bytes]]:
        return [each for each in bench.mortals if each.poll() is None]

    while time.monotonic() < until:
        while len(alive()) < 3:
            bench.mortal(seeded.choice(STEPS), seeded.choice(["SIGKILL", "SIGSTOP"]))
        bench.tenants(**{f"t{written + n}": {"flaky": seeded.randrange(3)} for n in range(50)})
        written += 50
        seeded.choice(alive()).send_signal(seeded.choice([signal.SIGKILL, signal.SIGTERM, signal.SIGSTOP]))
        goal = len(bench.outcomes()) + 25
        with suppress(AssertionError):  # all of them may be frozen
            eventually(partial(lambda wanted: len(bench.outcomes()) >= wanted, goal), 10.0)
        for each in alive():
            each.send_signal(signal.SIGCONT)
    with bench.runner():
        eventually(lambda: len(bench.outcomes()) == written)
    bench.once()


def test_a_processor_is_refused_with_all_its_problems() -> None:
    with pytest.raises(ConfigError) as refused:
        Processor(function=print, name="a b", topic="t", created="t", concurrency=0, retry=Retry(max_attempts=0))
    assert len(refused.value.problems) == 5


def shows(runner: ProcessRunner, name: str | None) -> bool:
    """Return True if status and metrics have exactly this pause, and it is live."""
    worker = ProcessWorker(runner)
    samples = next(metric.samples for metric in worker.metrics() if metric.name == "compactory_paused")
    paused = [] if name is None else [{"part": "processors", "name": name}]
    is_shown = worker.status()["paused"] == paused and samples == {tuple(item.values()): 1.0 for item in paused}
    return is_shown and worker.live()


def test_two_runners_obey_a_pause_within_a_second_and_lose_nothing(bench: Bench) -> None:
    """A running call ends normally; a runner that starts meanwhile obeys. Each event is handled once."""
    kafka, calls, answer = Kafka(bench.kafka), Counter[str | None](), threading.Event()

    @processor(bench.pending, name=bench.name, concurrency=2)
    def handle(event: Event) -> Output:
        calls[event.key] += 1
        assert answer.wait(60 if event.key == "slow" else 0.02) or event.key != "slow"
        return Output(topic=bench.created, key=event.key, value={})

    def outputs() -> set[str]:
        return {key for key, _ in committed(bench.kafka, bench.created)}

    with ProcessRunner(bench.kafka, handle) as first, ProcessRunner(bench.kafka, handle) as second:
        eventually(lambda: first.board.is_ready and second.board.is_ready)
        bench.tenants(slow={}, **{f"k{n}": {} for n in range(1000)})
        eventually(lambda: calls["slow"] and len(calls) > 5)
        assert operators.pause(kafka, bench.name)
        paused_at = time.monotonic()
        eventually(lambda: shows(first, bench.name) and shows(second, bench.name))
        assert time.monotonic() - paused_at < 1.0
        bench.tenants(later={})
        with ProcessRunner(bench.kafka, handle) as third:
            eventually(lambda: shows(third, bench.name))
            count = len(calls)
            answer.set()
            eventually(lambda: "slow" in outputs())
            polled_at = max(first.board.polled_at, second.board.polled_at) + 1
            eventually(lambda: min(first.board.polled_at, second.board.polled_at) > polled_at)
            assert len(calls) == count < 1000
            assert not operators.pause(kafka, bench.name)
            assert operators.resume(kafka, bench.name)
            resumed_at = time.monotonic()
            eventually(lambda: shows(first, None) and shows(second, None) and shows(third, None))
            assert time.monotonic() - resumed_at < 1.0
            eventually(lambda: len(outputs()) == 1002)
    assert set(Counter(key for key, _ in committed(bench.kafka, bench.created)).values()) == {1}
    assert not operators.resume(kafka, bench.name)


def test_each_act_leaves_a_line_of_the_log(bench: Bench) -> None:
    """Who, what and how many, in the transaction of the act; lines older than 90 days go with the next act."""
    kafka = Kafka(bench.kafka)
    bench.tenants(a={"flaky": 9}, b={"flaky": 9})
    with pytest.raises(ConfigError, match="has run on Kafka"):
        operators.pause(kafka, bench.name)
    with bench.runner(retry=Retry(max_attempts=1)) as runner:
        eventually(lambda: runner.board.failed == 2)
    first, second = sorted(stored.id for stored in operators.stored_events(kafka, bench.name))
    old = {"at": "2024-01-31T10:00:00+00:00", "who": "x", "part": "processors", "action": "drop", "count": 1}
    bench.topics.produce(group_of(bench.name), ("/log/old", json.dumps(old | {"object": {}})))
    assert len(operators.operator_log(kafka, bench.name)) == 1
    with pytest.raises(OrderRefused):
        operators.drop(kafka, bench.name, ["unknown"])
    assert operators.drop(kafka, bench.name, [first], by="alice") == 1
    assert operators.retry(kafka, bench.name) == 1
    assert operators.retry(kafka, bench.name) == 0
    operators.pause(kafka, bench.name)
    tell(bench, "pause", bench.name)  # changes nothing
    tell(bench, "resume", bench.name, "--by", "bob")
    lines = operators.operator_log(kafka, bench.name)[::-1]
    assert [(line.action, line.object, line.count) for line in lines] == [
        ("drop", {"processor": bench.name, "ids": [first]}, 1),
        ("retry", {"processor": bench.name}, 1),
        ("pause", {"processor": bench.name}, 1),
        ("resume", {"processor": bench.name}, 1),
    ]
    user = f"({getpass.getuser()}@{socket.gethostname()})"
    assert [line.who for line in lines[::3]] == [f"alice {user}", f"bob {user}"]
    shown = json.loads(tell(bench, "log", bench.name, "--limit", "1", "--json"))
    assert [line["action"] for line in shown["lines"]] == ["resume"]
    assert [stored.id for stored in operators.stored_events(kafka, bench.name)] == [second]
