"""``compactory serve`` as a process: start, stop, refusals."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import time
from collections.abc import Callable, Iterator
from http.client import HTTPConnection
from multiprocessing.process import BaseProcess
from pathlib import Path

import pytest

from compactory import ConfigError
from compactory_api.http.listen import Listen
from tests.api.serving import ask
from tests.cli.conftest import NOBODY_HOME, Shell
from tests.stack.command import start_command
from tests.store.topics import Topics, eventually


class Served:
    """A ``compactory serve`` on a free port; its log lines are JSON, as stderr is no terminal."""

    def __init__(self, process: BaseProcess, log: Path) -> None:
        self.process, self._log = process, log
        eventually(lambda: self._port() or not process.is_alive(), 60)
        assert process.is_alive(), self.log
        self.port = self._port()

    @property
    def log(self) -> str:
        """What the process has logged by now."""
        return self._log.read_text() if self._log.exists() else ""

    def _port(self) -> int:
        match = re.search(r'"url":"http://127\.0\.0\.1:(\d+)"', self.log)
        return int(match[1]) if match else 0

    def wait_ready(self) -> None:
        eventually(lambda: ask(self.port, "/readyz").status == 200, 60)

    def send(self, sign: signal.Signals) -> None:
        assert self.process.pid is not None
        os.kill(self.process.pid, sign)

    def end(self) -> int | None:
        """Wait for the end and return the exit code."""
        self.process.join(20)
        return self.process.exitcode


@pytest.fixture
def served(compactory: Shell, kafka: str, tmp_path: Path) -> Iterator[Callable[..., Served]]:
    """Starts ``compactory serve …``; killed after the test where it still runs."""
    processes: list[BaseProcess] = []

    def start(*arguments: str, **environment: str) -> Served:
        log = tmp_path / f"serve-{len(processes)}.log"
        words = ["serve", *arguments, "--kafka", kafka, "--listen", "127.0.0.1:0"]
        variables = compactory.environment | environment
        processes.append(start_command(words, folder=compactory.folder, environment=variables, out=log, err=log))
        return Served(processes[-1], log)

    yield start
    for process in processes:
        process.kill()
        process.join()


Start = Callable[..., Served]


def waiting(served: Served, topic: str, offset: int) -> tuple[HTTPConnection, HTTPConnection]:
    """A request that waits for an offset, and an idle connection that was used before."""
    idle = HTTPConnection("127.0.0.1", served.port, timeout=30)
    idle.request("GET", "/livez")
    idle.getresponse().read()
    busy = HTTPConnection("127.0.0.1", served.port, timeout=30)
    headers = {"Compactory-Min-Offset": f"{topic}:0:{offset}", "Prefer": "wait=25"}
    busy.request("GET", f"/v1/directories/{topic}/entries/a", headers=headers)
    return busy, idle


def test_a_request_under_way_is_answered_before_the_end(served: Start, topics: Topics) -> None:
    topic = topics.create()
    topics.produce(topic, ("a", '{"v":1}'))
    process = served(topic)
    process.wait_ready()
    busy, idle = waiting(process, topic, 1)
    ask(process.port, "/livez")  # by now the waiting request has been read as well
    process.send(signal.SIGTERM)
    eventually(lambda: not listens(process.port))
    topics.produce(topic, ("a", '{"v":2}'))
    answer = busy.getresponse()
    assert (answer.status, answer.read()) == (200, b'{"v":2}')
    assert answer.headers["connection"] == "close"
    assert process.end() == 0
    assert "Traceback" not in process.log
    busy.close()
    idle.close()


def test_a_wait_that_would_take_longer_than_the_shutdown_gets_an_answer(served: Start, topics: Topics) -> None:
    topic = topics.create()
    process = served(topic)
    process.wait_ready()
    busy, idle = waiting(process, topic, 1)
    ask(process.port, "/livez")
    began = time.monotonic()
    process.send(signal.SIGTERM)
    answer = busy.getresponse()
    assert answer.status == 503
    assert json.loads(answer.read())["type"].endswith(":stopping")
    assert process.end() == 0
    assert time.monotonic() - began < 15
    busy.close()
    idle.close()


def test_with_drain_it_is_not_ready_but_answers_until_balancers_have_noticed(served: Start, topics: Topics) -> None:
    topic = topics.create()
    topics.produce(topic, ("a", "{}"))
    process = served(topic, "--drain", "3")
    process.wait_ready()
    process.send(signal.SIGTERM)
    eventually(lambda: ask(process.port, "/readyz").status == 503)
    assert ask(process.port, "/readyz").json["stopping"] is True
    answer = ask(process.port, f"/v1/directories/{topic}/entries/a")
    assert (answer.status, answer.headers["connection"]) == (200, "close"), "or a client's next request meets the end"
    assert ask(process.port, "/livez").status == 200
    assert process.end() == 0


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_it_ends_at_once_when_nothing_is_under_way_even_while_loading(
    served: Start, topics: Topics, number: signal.Signals
) -> None:
    topic = topics.create()
    with topics.transaction() as producer:
        producer.produce(topic, "{}", "b")
        producer.flush(10)
        process = served(topic)
        eventually(lambda: ask(process.port, "/readyz").json["blocking"])
        began = time.monotonic()
        process.send(number)
        assert process.end() == 0
        assert time.monotonic() - began < 8
        producer.abort_transaction(10)


def test_a_token_from_the_environment_is_asked_for_and_used_by_get(
    served: Start, compactory: Shell, topics: Topics
) -> None:
    topic = topics.create()
    topics.produce(topic, ("a", '{"v":1}'))
    token = compactory.write("token", "s3cret-token\n")
    process = served(topic, COMPACTORY_HTTP_READ_TOKEN_FILE=str(token))
    eventually(lambda: ask(process.port, "/readyz").status == 200)
    assert ask(process.port, f"/v1/directories/{topic}/entries/a").status == 401
    url = {"COMPACTORY_URL": f"http://127.0.0.1:{process.port}"}
    assert compactory("get", topic, "a", **url).code == 2
    result = compactory("get", topic, "a", "--json", COMPACTORY_HTTP_READ_TOKEN="s3cret-token", **url)
    assert (result.code, result.json["value"]) == (0, {"v": 1})
    assert "s3cret" not in process.log


def test_what_can_not_be_served_is_refused_before_or_soon_after_the_start(
    compactory: Shell, topics: Topics, kafka: str
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as occupied:
        busy = compactory("serve", "x", "--kafka", kafka, "--listen", f"127.0.0.1:{occupied.getsockname()[1]}")
    assert (busy.code, "another process uses that port" in busy.err) == (2, True)
    open_to_all = compactory("serve", "x", "--kafka", kafka, "--listen", "0.0.0.0:0")
    assert (open_to_all.code, "--no-auth" in open_to_all.err) == (2, True)
    missing = compactory("serve", topics.unique("nope"), "--kafka", kafka, "--listen", "127.0.0.1:0", "--json")
    assert missing.code == 2
    assert "does not exist" in missing.error["message"]
    several = compactory("serve", "--listen", "nonsense", "--json")
    assert several.code == 2
    assert len(several.error["problems"]) == 3, "no directories, no Kafka, no place to listen: all at once"


@pytest.mark.proof  # it takes the 30 seconds that a store waits for a broker
def test_a_kafka_that_is_not_there_ends_it(compactory: Shell) -> None:
    assert compactory("serve", "x", "--kafka", NOBODY_HOME, "--listen", "127.0.0.1:0").code == 3


def test_no_auth_lets_everybody_in_by_word(compactory: Shell, topics: Topics, kafka: str) -> None:
    process = compactory.start("serve", topics.create(), "--kafka", kafka, "--listen", "0.0.0.0:0", "--no-auth")
    assert process.stderr is not None
    url = json.loads(process.stderr.readline())["url"]
    port = int(url.rpartition(":")[2])
    assert ask(port, "/v1/status", headers={"Host": "any.example"}).status == 200
    process.send_signal(signal.SIGTERM)
    assert process.wait(20) == 0
    process.communicate()


@pytest.mark.parametrize(
    "text", ["", "8080", ":8080", "h:", "h:x", "h:-1", "h:65536", "h:" + "9" * 50, "::1:80", "h:٣"]
)
def test_places_that_are_none_are_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="--listen"):
        Listen.parse(text)


def test_places_are_read_and_bound() -> None:
    assert Listen.parse("[::1]:8080") == Listen("::1", 8080)
    assert str(Listen("::1", 8080)) == "[::1]:8080"
    with pytest.raises(ConfigError, match="is not known"):
        Listen("host.invalid", 0).bind()
    with pytest.raises(ConfigError, match="does not have that address"):
        Listen("192.0.2.1", 0).bind()


def listens(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0
