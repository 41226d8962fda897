"""Histories of writers on few keys and unique values, against servers that are killed and paused."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from http.client import HTTPException
from math import inf
from typing import Any

import pytest

from compactory_cli.stack.port import free_port
from tests.api.linearizability import Event, linearizable
from tests.api.serving import Answer, ask
from tests.mastered.conftest import placed_log_of
from tests.stack.apache_kafka import ApacheKafka
from tests.stack.kafka_cluster import KafkaCluster
from tests.store.topics import Topics, eventually

KEYS = ("t1", "t2", "t3")
EMAILS = ("a@x", "b@x", "c@x", "d@x")
JSON = {"Content-Type": "application/json"}
SECONDS = float(os.environ.get("PROOF_SECONDS", "40"))


@dataclass
class Cluster:
    """Server processes over one topic."""

    kafka: str
    topic: str
    breakage: str = ""
    ports: list[int] = field(default_factory=list)
    processes: list[subprocess.Popen[bytes]] = field(default_factory=list)

    def launch(self, number: int) -> None:
        command = [sys.executable, "-m", "tests.api.server_process", self.kafka, self.topic, str(self.ports[number])]
        process = subprocess.Popen([*command, self.breakage], stdout=subprocess.DEVNULL)
        self.processes[number : number + 1] = [process]

    def start(self, servers: int) -> None:
        self.ports = [free_port() for _ in range(servers)]
        for number in range(servers):
            self.launch(number)
        for number in range(servers):
            self.wait_for(number)

    def wait_for(self, number: int) -> None:
        """Wait until the server takes writes:"""
        eventually(lambda: self.answers(number), 60)

    def answers(self, number: int) -> bool:
        with suppress(OSError, HTTPException):
            return ask(self.ports[number], "/readyz", timeout=5).status == 200
        return False

    def disturb(self, dice: random.Random) -> None:
        """Kill or pause one of the servers, then have it back."""
        number = dice.randrange(len(self.ports))
        process = self.processes[number]
        if dice.random() < 0.4:
            process.kill()
            process.wait()
            self.launch(number)
            self.wait_for(number)
        else:
            process.send_signal(signal.SIGSTOP)
            time.sleep(dice.uniform(0.5, 4.5))  # how long it stands still is the experiment
            process.send_signal(signal.SIGCONT)

    def stop(self) -> None:
        for process in self.processes:
            with suppress(ProcessLookupError):
                process.send_signal(signal.SIGCONT)
            process.kill()
            process.wait()


@pytest.fixture
def cluster(kafka: str, unique: Callable[[str], str]) -> Iterator[Cluster]:
    cluster = Cluster(kafka, Topics(kafka, unique).create())
    yield cluster
    cluster.stop()


@dataclass(frozen=True)
class Batch:
    """A batch of one writer: the marks of its values, the cursor that it expected, and the one to store."""

    writer: int
    marks: tuple[str, ...]
    expected: str | None
    next: str


class Writers:
    """Threads that write, each recording what it asked and what it was told."""

    def __init__(self, cluster: Cluster, seed: int) -> None:
        self.cluster = cluster
        self.seed = seed
        self.histories: dict[str, list[Event]] = defaultdict(list)
        self.acknowledged: dict[str, tuple[str, str]] = {}  # mark of the written value → key, ETag
        self.batches: list[Batch] = []
        self.differing: list[tuple[Any, Any]] = []
        self.stopping = threading.Event()

    def run(self, writers: int) -> list[threading.Thread]:
        threads = [threading.Thread(target=self._write, args=(number,)) for number in range(writers)]
        for thread in threads:
            thread.start()
        return threads

    def _write(self, number: int) -> None:
        dice = random.Random(f"{self.seed}-{number}")
        tags: dict[str, str] = {}
        count, cursor = 0, None
        while not self.stopping.is_set():
            count += 1
            if dice.random() < 0.3:
                cursor = self._write_batch(dice, number, count, cursor)
                continue
            key, mark = dice.choice(KEYS), f"{number}-{count}"
            method = "DELETE" if dice.random() < 0.15 else "PUT"
            headers = {"Idempotency-Key": mark} if dice.random() < 0.7 or method == "DELETE" else {}
            if key in tags and dice.random() < 0.6:
                headers["If-Match"] = tags[key]
            value = None if method == "DELETE" else {"email": dice.choice(EMAILS), "mark": mark}
            began = time.monotonic()
            answer = self._ask(dice, method, key, value, headers)
            ended = time.monotonic()
            if answer is None or (answer.status == 503 and b'"unknown"' in answer.body):
                self.histories[key].append(Event(began, inf, (method, headers.get("If-Match"), mark), None))
                continue
            if answer.status == 503:
                continue
            assert answer.status in (200, 201, 204, 404, 409, 412), answer
            tag = answer.headers.get("etag")
            operation = (method, headers.get("If-Match"), mark)
            self.histories[key].append(Event(began, ended, operation, (answer.status, tag)))
            if tag is not None:
                if method == "PUT":
                    tags[key] = tag
                    self.acknowledged[mark] = (key, tag)
                if "Idempotency-Key" in headers and dice.random() < 0.3:
                    repeated = self._ask(dice, method, key, value, headers)
                    if repeated is not None and repeated.status != 503 and repeated.headers.get("etag") != tag:
                        self.differing.append((answer, repeated))

    def _write_batch(self, dice: random.Random, number: int, count: int, cursor: str | None) -> str | None:
        """Write two entries, and the cursor of this writer with them; return the stored cursor, as far as it is known.

        If the outcome is unknown, the next batch expects the same cursor. It is refused if this one was written.
        """
        batch = Batch(number, (f"{number}-{count}-a", f"{number}-{count}-b"), cursor, str(count))
        self.batches.append(batch)
        keys = dice.sample(KEYS, 2)
        operations = [
            {"op": "put", "key": key, "value": {"email": dice.choice(EMAILS), "mark": mark}}
            for key, mark in zip(keys, batch.marks, strict=True)
        ]
        document = {"operations": operations, "cursor": {"name": f"w{number}", "expected": cursor, "next": batch.next}}
        headers = {"Idempotency-Key": f"batch-{number}-{count}"} if dice.random() < 0.5 else {}
        began = time.monotonic()
        answer = self._ask(dice, "POST", None, document, headers)
        ended = time.monotonic()
        if answer is None or (answer.status == 503 and b'"unknown"' in answer.body):
            for key, mark in zip(keys, batch.marks, strict=True):
                self.histories[key].append(Event(began, inf, ("PUT", None, mark), None))
            return cursor
        if answer.status == 503:
            return cursor
        assert answer.status in (200, 409), answer
        if answer.status == 409:
            refusal = answer.json
            if "cursor" in refusal:
                return refusal["cursor"]
            [error] = refusal["errors"]
            self.histories[error["key"]].append(
                Event(began, ended, ("PUT", None, batch.marks[error["index"]]), (409, None))
            )
            return cursor
        for result, mark in zip(answer.json["results"], batch.marks, strict=True):
            outcome = (result["status"], result["etag"])
            self.histories[result["key"]].append(Event(began, ended, ("PUT", None, mark), outcome))
            self.acknowledged[mark] = (result["key"], result["etag"])
        return batch.next

    def _ask(
        self, dice: random.Random, method: str, key: str | None, value: Any, headers: dict[str, str]
    ) -> Answer | None:
        """Ask, with an Idempotency-Key until the outcome is known; None: unknown. Without a key: write a batch."""
        path = "entries:batchWrite" if key is None else f"entries/{key}"
        body = None if value is None else json.dumps(value).encode()
        deadline = time.monotonic() + 30
        while True:
            port = dice.choice(self.cluster.ports)
            with suppress(OSError, HTTPException):
                answer = ask(
                    port, f"/v1/directories/tenants/{path}", method, body=body,
                    headers={**(JSON if body else {}), **headers}, timeout=15,
                )  # fmt: skip
                if answer.status != 503 or "Idempotency-Key" not in headers or time.monotonic() > deadline:
                    return answer
            if "Idempotency-Key" not in headers or time.monotonic() > deadline or self.stopping.is_set():
                return None


class Register:
    """The entry of one key, whose states are those of the log: how many of its records have been written.

    The log says in which order writes took effect, also those with an unknown outcome.
    """

    def __init__(self, key: str, log: list[tuple[str, Any, int]]) -> None:
        own = [(value, offset) for name, value, offset in log if name == key]
        self._marks = [None if value is None else value["mark"] for value, _ in own]
        self._offsets = [offset for _, offset in own]

    def apply(self, state: int, event: Event) -> int | None:
        method, required_tag, mark = event.operation
        exists = state > 0 and self._marks[state - 1] is not None
        offset = self._offsets[state - 1] if exists else None
        holds = required_tag is None or (exists and _offset(required_tag) == offset)
        if event.result is None:
            fits = holds and self._is_next(state, mark if method == "PUT" else None)
            return state + 1 if fits else None
        status, tag = event.result
        if status == 412:
            return None if holds else state
        if status == 404:
            return state if not exists and required_tag is None else None
        if status == 409:
            return state if holds else None
        fits = (
            holds and self._is_next(state, mark if method == "PUT" else None) and _offset(tag) == self._offsets[state]
        )
        return state + 1 if fits and (status == 201) == (not exists) else None

    def _is_next(self, state: int, mark: str | None) -> bool:
        return state < len(self._marks) and self._marks[state] == mark


def _offset(tag: str) -> int:
    return int(tag.strip('"').rpartition("-")[2])


def batch_problems(batches: list[Batch], marks: list[str], stored: dict[str, str]) -> list[str]:
    """Return what is wrong with batches, by the marks of the log in its order and the cursors that are stored."""
    positions = {mark: position for position, mark in enumerate(marks)}
    problems = list[str]()
    for number in sorted({batch.writer for batch in batches}):
        own = [batch for batch in batches if batch.writer == number]
        problems += [f"{batch} is in part" for batch in own if len({mark in positions for mark in batch.marks}) > 1]
        written = sorted((batch for batch in own if batch.marks[0] in positions), key=lambda b: positions[b.marks[0]])
        cursors = [None, *(batch.next for batch in written)]
        problems += [
            f"{batch} was written after cursor {previous}"
            for batch, previous in zip(written, cursors, strict=False)
            if batch.expected != previous
        ]
        if stored.get(f"w{number}") != cursors[-1]:
            problems.append(f"writer {number} has cursor {stored.get(f'w{number}')}, not {cursors[-1]}")
    return problems


def violations(cluster: Cluster, writers: Writers) -> list[str]:
    """What is wrong with the histories and with the topic."""
    log = placed_log_of(cluster.kafka, cluster.topic)
    registers = {key: Register(key, log) for key in KEYS}
    problems = [
        f"history of {key}" for key in KEYS if not linearizable(writers.histories[key], 0, registers[key].apply)
    ]
    marks = [value["mark"] for _, value, _ in log if value is not None]
    answers = placed_log_of(cluster.kafka, f"{cluster.topic}-writes")
    cursors = {key.removeprefix("cursor:"): value["cursor"] for key, value, _ in answers if key.startswith("cursor:")}
    problems += batch_problems(writers.batches, marks, cursors)
    problems += [f"{mark} is written twice" for mark in set(marks) if marks.count(mark) > 1]
    problems += [f"{mark} is lost" for mark in writers.acknowledged if mark not in marks]
    entries: dict[str, str] = {}
    for key, value, _ in log:
        entries.pop(key, None)
        if value is not None:
            if value["email"] in entries.values():
                problems.append(f"{value['mark']}: two entries have one email")
            entries[key] = value["email"]
    return [*problems, *(f"a repeat was answered otherwise: {pair}" for pair in writers.differing)]


def history(
    cluster: Cluster,
    servers: int,
    threads: int,
    seconds: float,
    seed: int,
    min_writes: int = 0,
    brokers: Callable[[], object] | None = None,
) -> list[str]:
    """Write and disturb; return the violations.

    It ends after ``seconds``, but not before ``min_writes`` writes are acknowledged. ``brokers`` disturbs Kafka.
    """
    cluster.start(servers)
    writers, dice = Writers(cluster, seed), random.Random(seed)
    running = writers.run(threads)
    began = time.monotonic()
    try:
        while (passed := time.monotonic() - began) < seconds or len(writers.acknowledged) < min_writes:
            assert passed < seconds + 60
            time.sleep(dice.uniform(0.2, 1.0))  # of undisturbed writing
            if brokers is not None and dice.random() < 0.4:
                brokers()
            else:
                cluster.disturb(dice)
    finally:
        writers.stopping.set()
        for thread in running:
            thread.join(60)
    return violations(cluster, writers)


def test_racing_writers_are_linearizable_while_servers_are_killed_and_paused(cluster: Cluster) -> None:
    """Guarantee 18 and Guarantee 17: no lost update, no lost or doubled write, unique values stay unique.

    A batch is whole or absent, and each is written once: after the batch before it, of which its cursor tells.
    """
    problems = history(cluster, servers=2, threads=4, seconds=2, seed=19, min_writes=6)
    assert not problems


@pytest.mark.proof
@pytest.mark.parametrize("seed", [int(text) for text in os.environ.get("SEEDS", "1,2,3").split(",")])
@pytest.mark.parametrize("reader", ["", "slow"])
def test_long_histories_are_linearizable(cluster: Cluster, seed: int, reader: str) -> None:
    """Guarantee 18 and Guarantee 17, with three servers and 32 writers, also where stores read late."""
    cluster.breakage = reader
    problems = history(cluster, servers=3, threads=32, seconds=SECONDS, seed=seed, min_writes=100)
    assert not problems


@pytest.mark.proof
def test_histories_are_linearizable_while_the_broker_is_restarted(own_kafka: ApacheKafka, cluster: Cluster) -> None:
    """Guarantee 18 and Guarantee 17: the broker is away for some seconds, again and again; servers are killed too."""

    def restart() -> None:
        own_kafka.stop()
        own_kafka.start()

    assert not history(cluster, servers=3, threads=32, seconds=SECONDS, seed=7, min_writes=50, brokers=restart)


@pytest.mark.proof
def test_histories_are_linearizable_while_one_broker_of_three_is_away(unique: Callable[[str], str]) -> None:
    """Guarantee 18 and Guarantee 17: another broker leads, again and again; servers are killed too."""
    kafka, dice = KafkaCluster(3), random.Random(5)
    try:
        kafka.start()
        cluster = Cluster(kafka.address, Topics(kafka.address, unique).create(replicas=3))
        try:
            problems = history(
                cluster,
                servers=3,
                threads=32,
                seconds=SECONDS,
                seed=5,
                min_writes=50,
                brokers=lambda: kafka.disturb(dice),
            )
        finally:
            cluster.stop()
    finally:
        kafka.remove()
    assert not problems


@pytest.mark.proof
@pytest.mark.parametrize("breakage", ["fence", "reading", "answers", "cursors"])
def test_the_histories_show_what_is_broken_on_purpose(kafka: str, unique: Callable[[str], str], breakage: str) -> None:
    """Most histories show each mistake; one of five does for certain."""
    for seed in range(4, 9):
        cluster = Cluster(kafka, Topics(kafka, unique).create(), breakage)
        try:
            if history(cluster, servers=2, threads=8, seconds=25, seed=seed):
                return
        finally:
            cluster.stop()
    pytest.fail("no history shows it")
