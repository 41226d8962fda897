"""``compactory watch``: a server's changes, a topic's changes, and how it ends."""

from __future__ import annotations

import json
import signal
import subprocess
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from compactory import testing
from compactory_api.http.access import Access
from tests.api.serving import Serving
from tests.cli.conftest import Shell
from tests.store.topics import Topics, eventually

Start = Callable[..., "subprocess.Popen[str]"]


@pytest.fixture
def store() -> testing.InProcessStore:
    return testing.store({"d": {"a": {"n": 1}}}, start=False)


@pytest.fixture
def serving(store: testing.InProcessStore) -> Iterator[Serving]:
    serving = Serving(store, Access())
    serving.wait_ready()
    yield serving
    serving.stop()


@pytest.fixture
def topics(kafka: str, unique: Callable[[str], str]) -> Topics:
    """Topics of the run's Apache Kafka."""
    return Topics(kafka, unique)


@pytest.fixture
def watching(compactory: Shell) -> Iterator[Start]:
    """Starts ``compactory watch …``; killed after the test where it still runs."""
    running: list[subprocess.Popen[str]] = []

    def start(*arguments: str, **environment: str) -> subprocess.Popen[str]:
        running.append(compactory.start("watch", *arguments, **environment))
        return running[-1]

    yield start
    for process in running:
        process.kill()
        process.communicate()


def line(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline()


def test_a_servers_changes_for_people_and_for_programs(
    store: testing.InProcessStore, serving: Serving, watching: Start, compactory: Shell
) -> None:
    url = {"COMPACTORY_URL": f"http://127.0.0.1:{serving.port}"}
    people, programs = watching("d", **url), watching("d", "--prefix", "b", "--json", **url)
    eventually(lambda: serving.server.app.streams.counts() == {"d": 2})
    store.put("d", "a\n", {"n": 2})
    token = store.put("d", "b", {"n": 3}, timestamp_ms=7)
    store.delete("d", "b")
    assert [line(people) for _ in range(3)] == ['put    a\\n {"n": 2}\n', 'put    b {"n": 3}\n', "delete b\n"]
    first: dict[str, Any] = json.loads(line(programs))
    assert first == {
        "kind": "put", "key": "b", "old": None, "new": {"n": 3}, "partition": 0, "offset": token.offset,
        "timestamp_ms": 7, "cursor": f"in-process-d;0:{token.offset + 1}",
    }  # fmt: skip
    again = watching("d", "--since", first["cursor"], **url)
    assert line(again) == "delete b\n"
    again.send_signal(signal.SIGINT)
    assert again.wait(20) == 130
    gone = compactory("watch", "d", "--since", "in-process-d;0:0", "--json", **url)
    assert gone.code == 1
    assert f"watch on from the cursor in-process-d;0:{token.offset + 2} (HTTP 410" in gone.error["message"]
    serving.server.stop()
    assert people.wait(20) == 3
    assert people.stderr is not None
    assert "error: the server shuts down; ask another one" in people.stderr.read()


def test_a_topics_changes(topics: Topics, watching: Start, compactory: Shell, kafka: str) -> None:
    topic = topics.create()
    topics.produce(topic, ("a", '{"n":1}'))
    process = watching(topic, "--json", "--kafka", kafka)
    found: list[dict[str, Any]] = []

    def written_and_seen() -> bool:
        topics.produce(topic, ("b", '{"n":2}'))
        return bool(found)

    reading = threading.Thread(target=lambda: found.append(json.loads(line(process))))
    reading.start()
    eventually(written_and_seen)
    reading.join()
    assert (found[0]["kind"], found[0]["key"], found[0]["new"]) == ("put", "b", {"n": 2})
    wrong = compactory("watch", topic, "--since", "x", "--kafka", kafka)
    assert (wrong.code, "'x' is not a cursor" in wrong.err) == (2, True)
