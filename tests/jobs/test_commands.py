"""``compactory jobs`` as a process: exit codes, tables and JSON."""

from __future__ import annotations

import json
import os
import pty
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from compactory.kafka.client import Kafka
from compactory_cli.stack.port import free_port
from tests.jobs.harness import Bench
from tests.source.workload import wait_until
from tests.stack.command import run_command

SERVICE = """
from compactory_connectors.jobs import Jobs, Retry
jobs = Jobs()
@jobs.handler("a", retry=Retry(max_attempts=1))
def handle(job):
    if job.payload:
        raise ValueError("the reason")
"""


def run(bench: Bench, *words: str, code: int = 0) -> Any:
    given = ["jobs", *words, "--postgres", bench.url, "--json"]
    done = run_command(given, folder=Path.cwd(), environment=os.environ)
    assert done.returncode == code, done.stdout + done.stderr
    return json.loads(done.stdout.splitlines()[0]) if done.stdout else None


def test_an_executor_shows_itself_and_operators_do_their_round(
    bench: Bench, tmp_path: Path, kafka: str, unique: Callable[[str], str]
) -> None:
    topic = unique("jobs")
    Kafka(kafka).create_topic(topic, partitions=3)
    (tmp_path / "service_of_jobs.py").write_text(SERVICE)
    bench.jobs.declare("a")
    bench.jobs.declare("nobody's")
    place = f"127.0.0.1:{free_port()}"
    command = [sys.executable, "-m", "compactory_cli", "jobs", "run", "service_of_jobs:jobs", "--listen", place]
    places = ["--postgres", bench.url, "--kafka", kafka, "--topic", topic, "--group-id", unique("group")]
    executor = subprocess.Popen([*command, *places], cwd=tmp_path)
    try:

        def ready() -> bool:
            assert executor.poll() is None
            try:
                return urllib.request.urlopen(f"http://{place}/readyz", timeout=2).status == 200
            except OSError:
                return False

        wait_until(ready, what="readiness")
        good, poison = bench.enqueue("a"), bench.enqueue("a", {"fails": 1}, group="g")
        waiting, unknown = bench.enqueue("a", group="g"), bench.enqueue("nobody's")
        bench.wait_for(good, "succeeded")
        bench.wait_for(poison, "failed")
        status = run(bench, "status")
        assert [(t["type"], t["state"], t["jobs"], t["executors"]) for t in status["types"]] == [
            ("a", "failed", 1, 1), ("a", "scheduled", 1, 1), ("nobody's", "scheduled", 1, 0),
        ]  # fmt: skip
        assert len(status["executors"]) == 1
        (failed,) = run(bench, "list", "--state", "failed")["jobs"]
        assert failed["id"] == poison
        assert "payload" not in failed
        assert "ValueError: the reason" in run(bench, "show", str(poison))["last_error"]
        assert run(bench, "retry", str(poison)) == {"jobs": 1}
        wait_until(lambda: bench.state(poison) == "failed", what="the second failure")
        assert bench.state(waiting) == "scheduled"
        run(bench, "discard", "--type", "a", code=2)  # nobody can confirm it
        assert run(bench, "discard", "--type", "a", "--yes") == {"jobs": 1}
        bench.wait_for(waiting, "succeeded")
        assert run(bench, "cancel", str(unknown)) == {"jobs": 1}
        for order in ("cancel", "retry", "discard", "run-now"):
            run(bench, order, "999999", code=1)
            run(bench, order, str(good), code=1)  # it has succeeded
            run(bench, order, "--payload", "{order: 7}", "--yes", code=2)
        run(bench, "cancel", code=2)
        metrics = urllib.request.urlopen(f"http://{place}/metrics", timeout=5).read().decode()
        assert 'compactory_jobs_runs_total{outcome="succeeded",type="a"} 2.0' in metrics.replace(
            '{type="a",outcome="succeeded"}', '{outcome="succeeded",type="a"}'
        )
        executor.send_signal(signal.SIGTERM)
        assert executor.wait(20) == 0
    finally:
        executor.kill()
    assert bench.count("compactory.job_executors") == 0


def test_jobs_are_found_page_by_page_and_changed_by_the_same_options(bench: Bench) -> None:
    bench.jobs.declare("a")
    ids = [bench.enqueue("a", {"order": n % 2}, tenant="north") for n in range(5)]
    page = run(bench, "list", "--tenant", "north", "--limit", "3")
    assert [job["id"] for job in page["jobs"]] == ids[:1:-1]
    assert (page["count"], page["exact"], page["next_before"]) == (5, True, ids[2])
    page = run(bench, "list", "--tenant", "north", "--limit", "3", "--before", str(ids[2]))
    assert ([job["id"] for job in page["jobs"]], page["next_before"]) == (ids[1::-1], None)
    done = run_command(
        ["jobs", "cancel", "--payload", '{"order": 1}', "--postgres", bench.url],
        folder=Path.cwd(),
        environment=os.environ,
    )
    assert done.returncode == 2
    assert "cancel would change 2 jobs; not a terminal: add --yes" in done.stderr
    assert bench.count("compactory.jobs_live") == 5
    assert run(bench, "cancel", "--payload", '{"order": 1}', "--yes") == {"jobs": 2}
    assert run(bench, "cancel", "--since", "2100-01-01T00:00Z") == {"jobs": 0}  # no match, no question
    run(bench, "cancel", "--since", "yesterday", "--yes", code=2)
    assert bench.count("compactory.jobs_live") == 3


@pytest.mark.parametrize(("answer", "left"), [(b"n\n", 3), (b"y\n", 0)])
def test_a_change_of_all_matches_tells_how_many_and_asks(bench: Bench, answer: bytes, left: int) -> None:
    """At a terminal; whoever says no changes nothing."""
    bench.jobs.declare("a")
    for _ in range(3):
        bench.enqueue("a")
    terminal, end = pty.openpty()
    command = [sys.executable, "-m", "compactory_cli", "jobs", "cancel", "--type", "a", "--postgres", bench.url]
    try:
        os.write(terminal, answer)
        done = subprocess.run(command, stdin=end, capture_output=True, text=True, timeout=60, check=False)
    finally:
        os.close(terminal)
        os.close(end)
    assert "cancel: 3 jobs match. Change them?" in done.stderr
    assert done.returncode == (130 if left else 0)
    assert bench.count("compactory.jobs_live") == left


def test_a_type_is_limited_and_the_limits_are_listed(bench: Bench) -> None:
    bench.jobs.declare("a")
    bench.enqueue("a")
    limited = run(bench, "limit", "a", "--running", "5", "--rate", "100 per minute", "--by", "alice")
    assert limited == {"name": "type a", "limited": True, "changed": True}
    limit = {
        "kind": "type",
        "name": "a",
        "running": 5,
        "rate": "100 per minute",
        "set_by": "operator",
        "running_now": 0,
    }
    assert run(bench, "status")["limits"] == [limit]
    for words in ([], ["--running", "0"], ["--rate", "100 per fortnight"], ["--remove", "--running", "1"]):
        run(bench, "limit", "a", *words, code=2)
    assert run(bench, "status")["limits"] == [limit]
    done = run_command(["jobs", "status", "--postgres", bench.url], folder=Path.cwd(), environment=os.environ)
    assert "100 per minute" in done.stdout
    assert run(bench, "limit", "a", "--remove")["changed"] is True
    assert run(bench, "limit", "a", "--remove")["changed"] is False
    assert run(bench, "limit", "--tenant", "north", "--running", "2")["name"] == "tenant north"
    assert run(bench, "limit", "--group", "depot/", "--rate", "1 per hour")["name"] == "groups depot/…"
    assert [(item["kind"], item["name"]) for item in run(bench, "status")["limits"]] == [
        ("group", "depot/"), ("tenant", "north"),
    ]  # fmt: skip
    run(bench, "limit", "a", "--tenant", "north", "--running", "1", code=2)
    assert run(bench, "limit", "--tenant", "north", "--remove")["changed"] is True
    assert run(bench, "limit", "--group", "depot/", "--remove")["changed"] is True
    assert run(bench, "status")["limits"] == []


def test_a_type_is_paused_and_resumed_and_the_log_says_by_whom(bench: Bench) -> None:
    bench.jobs.declare("a")
    bench.enqueue("a")
    assert run(bench, "pause", "a", "--by", "alice") == {"name": "type a", "paused": True, "changed": True}
    assert run(bench, "pause", "a")["changed"] is False
    run(bench, "pause", code=2)
    run(bench, "pause", "a", "--group", "g", code=2)
    run(bench, "pause", "--group", "g")
    (group, type_) = run(bench, "status")["paused"]
    assert (group["part"], group["name"], type_["part"], type_["name"]) == ("job-groups", "g", "jobs", "a")
    assert type_["by"] == "alice"
    assert run(bench, "resume", "a") == {"name": "type a", "running": True, "changed": True}
    assert run(bench, "cancel", "--type", "a", "--yes", "--by", "bob") == {"jobs": 1}
    lines = run(bench, "log", "--limit", "4")["lines"]
    assert [(line["action"], line["object"], line["count"]) for line in lines] == [
        ("cancel", {"type": "a"}, 1),
        ("resume", {"type": "a"}, 1),
        ("pause", {"group": "g"}, 1),
        ("pause", {"type": "a"}, 1),
    ]
    assert lines[0]["who"].startswith("bob (")
    assert lines[3]["who"].startswith("alice (")
    for command, text in (
        (["log"], "pause"),
        (["status"], "group g "),
        (["resume", "b"], "was running"),
    ):
        done = run_command(["jobs", *command, "--postgres", bench.url], folder=Path.cwd(), environment=os.environ)
        assert text in done.stdout, done.stderr
    done = run_command(["jobs", "pause", "c", "--postgres", bench.url], folder=Path.cwd(), environment=os.environ)
    assert "no type 'c' was seen yet" in done.stderr
    assert done.returncode == 0
