"""The health listener of workers: with made-up workers, and on the source."""

from __future__ import annotations

import json
import re
import signal
import threading
from collections.abc import Iterator
from typing import Any

import psycopg
import pytest

from compactory import ConfigError
from compactory.worker import Metric
from compactory_api.http.access import Tokens
from compactory_api.http.listen import Listen
from compactory_api.ops.listener import Listener
from tests.api.serving import ask, ask_raw
from tests.api.test_operations import samples
from tests.cli.conftest import Article, Shell
from tests.store.topics import eventually

LOCAL = Listen("127.0.0.1", 0)


class Fake:
    """A worker whose state the test sets."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.alive = True
        self.is_ready = False

    def live(self) -> bool:
        return self.alive

    def ready(self) -> bool:
        return self.is_ready

    def blocking(self) -> list[dict[str, Any]]:
        return [{"table": self.name}]

    def status(self) -> dict[str, Any]:
        return {"detail": "é"}

    def metrics(self) -> Iterator[Metric]:
        samples: dict[tuple[str, ...], float] = {(self.name, 'a"b\n'): 2.0}
        labels = ("worker", "odd")
        yield Metric(name="compactory_fake_total", kind="counter", help="h", labels=labels, samples=samples)
        yield Metric(
            name="compactory_fake_lag", kind="gauge", help="h", samples={(self.name,): 1.0}, labels=("worker",)
        )


def test_probes_follow_the_workers_and_metrics_of_one_name_are_one_family() -> None:
    first, second = Fake("one"), Fake("two")
    with Listener(LOCAL, [first, second]) as listener:
        port = listener.address.port
        assert ask(port, "/livez").json == {"live": True}
        first.is_ready = True
        waiting = ask(port, "/readyz")
        assert (waiting.status, waiting.json["blocking"]) == (503, [{"table": "two"}])
        second.is_ready = True
        assert (ask(port, "/readyz").status, ask(port, "/readyz?verbose").status) == (200, 200)
        first.alive = False
        assert (ask(port, "/livez").status, ask(port, "/livez").json["dead"]) == (503, ["one"])
        status = ask(port, "/v1/status").json
        assert [(worker["name"], worker["live"], worker["detail"]) for worker in status["workers"]] == [
            ("one", False, "é"),
            ("two", True, "é"),
        ]
        text = ask(port, "/metrics").body.decode()
        assert text.count("# TYPE compactory_fake_total counter") == 1
        values = samples(text)
        assert values["compactory_fake_total", frozenset({"worker": "two", "odd": 'a"b\n'}.items())] == 2
        assert values["compactory_fake_lag", frozenset({"worker": "one"}.items())] == 1


def test_it_answers_nothing_else_and_survives_nonsense() -> None:
    with Listener(LOCAL, [Fake("one")]) as listener:
        port = listener.address.port
        assert ask(port, "/").problem == "no-resource"
        assert ask(port, "/v1/directories/d/entries/a").status == 404
        refused = ask(port, "/livez", "POST", body=b"x" * 1000)
        assert (refused.status, refused.problem, refused.headers["allow"]) == (405, "method-not-allowed", "GET, HEAD")
        assert ask(port, "/readyz", "HEAD").body == b""
        for raw in (
            b"\x00\xff\r\n\r\n",
            b"GET\r\n\r\n",
            b"GET /livez HTTP/9.9\r\n\r\n",
            b"",
            b"GET /livez HTTP/1.1\r\n" * 200,
        ):
            ask_raw(port, raw)
        assert ask_raw(port, b"BREW /livez HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n").startswith(
            b"HTTP/1.1 400"
        )
        assert ask(port, "/livez").status == 200
        assert ask(port, "/v1/status", headers={"Host": "evil.example"}).status == 421
    with pytest.raises(ConnectionRefusedError):
        ask(port, "/livez")
    listener.stop()


def test_a_worker_that_fails_to_tell_is_an_error_not_an_end() -> None:
    worker = Fake("one")
    worker.live = lambda: 1 / 0  # type: ignore[assignment, return-value, method-assign]
    with Listener(LOCAL, [worker]) as listener:
        assert ask(listener.address.port, "/livez").problem == "internal"
        assert ask(listener.address.port, "/readyz").status == 503


def test_status_needs_the_token_and_never_leaves_the_machine_without_one() -> None:
    with Listener(LOCAL, [Fake("one")], Tokens(read="abc")) as listener:
        port = listener.address.port
        assert ask(port, "/v1/status").status == 401
        assert ask(port, "/v1/status", headers={"Authorization": "Bearer abc"}).status == 200
        assert ask(port, "/livez").status == 200
        assert ask(port, "/metrics").status == 200
    with Listener(Listen("0.0.0.0", 0), [Fake("one")]) as listener:
        port = listener.address.port
        assert ask(port, "/livez").status == 200
        assert ask(port, "/v1/status").status == 401
    with Listener(Listen("0.0.0.0", 0), [Fake("one")], Tokens(read="abc")) as listener:
        bearer = {"Authorization": "Bearer abc"}
        assert ask(listener.address.port, "/v1/status", headers=bearer).status == 200
        with pytest.raises(ConfigError, match="another process uses that port"):
            Listener(listener.address, []).start()


def test_the_source_shows_itself(compactory: Shell, article: Article, terminals: str, kafka: str) -> None:
    place = ("--listen", "127.0.0.1:0", "--kafka", kafka, "--log-format", "json")
    process = compactory.start("source", "run", *article.arguments, *place)
    lines: list[str] = []
    assert process.stderr is not None
    reader = threading.Thread(target=lines.extend, args=(process.stderr,))
    reader.start()
    try:
        match = eventually(lambda: re.search(r"health on http://127\.0\.0\.1:(\d+)", "".join(lines)))
        port = int(match[1])
        assert ask(port, "/livez").status == 200
        eventually(lambda: ask(port, "/readyz").status == 200)
        labels = frozenset({"connector": article.path.stem, "table": "public.terminal_acquirer"}.items())

        def figure(name: str) -> float:
            return samples(ask(port, "/metrics").body.decode()).get((f"compactory_source_{name}", labels), -1)

        assert figure("rows_total") == 5
        assert figure("polls_total") >= 1
        assert (figure("errors_total"), figure("held_back_seconds"), figure("active")) == (0, 0, 1)
        assert 0 <= figure("lag_seconds") < 30
        with psycopg.connect(terminals, autocommit=True) as connection:
            connection.execute("INSERT INTO terminal_acquirer (terminal_id, acquirer_id) VALUES ('T6', 'A')")
        eventually(lambda: figure("rows_total") == 6, 30)
        [worker] = ask(port, "/v1/status").json["workers"]
        assert worker["name"] == f"source {article.path.stem}"
        assert worker["state"] == "RUNNING"
        [table] = worker["tables"]
        assert (table["table"], table["topic"], table["rows_total"]) == ("public.terminal_acquirer", article.topic, 6)
        assert "never printed" not in json.dumps(worker)
    finally:
        process.send_signal(signal.SIGTERM)
        assert process.wait(30) == 0
        reader.join(10)
        process.communicate()
