"""``compactory outbox`` as a process: exit codes, tables and JSON."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import urllib.request
from pathlib import Path
from typing import Any

from compactory_cli.stack.port import free_port
from compactory_connectors.outbox.operators import failed_messages
from tests.outbox.harness import Bench
from tests.source.workload import wait_until
from tests.stack.command import run_command


def run(bench: Bench, *words: str, code: int = 0) -> Any:
    common = ("--postgres", bench.url, "--kafka", bench.address, "--json")
    done = run_command(["outbox", *words, *common], folder=Path.cwd(), environment=os.environ)
    assert done.returncode == code, done.stdout + done.stderr
    return json.loads(done.stdout.splitlines()[0]) if done.stdout else None


def test_an_operators_round(bench: Bench) -> None:
    topic = bench.topic(**{"max.message.bytes": "2000"})
    bench.publish(topic, "1")
    poison = bench.publish(topic, random.Random(1).randbytes(5000))
    bench.publish(topic, "2")
    (status,) = run(bench, "status")["topics"]
    assert (status["topic"], status["pending"], status["locked_by"]) == (topic, 3, None)  # no relay has seen it yet
    assert run(bench, "run", "--once", code=1) == {"sent": {topic: 1}}
    (status,) = run(bench, "status")["topics"]
    assert (status["pending"], status["failed"], status["waiting"]) == (0, 1, 1)
    failed, waiting = run(bench, "failed", "--topic", topic, code=1)["messages"]
    assert (failed["id"], failed["bytes"], waiting["reason"]) == (poison, 5000, None)
    for wrong in (["retry", str(poison), "7"], ["drop", "7"], ["run", "--once", "--topic", "no-such"]):
        run(bench, *wrong, code=1)
    assert run(bench, "retry", str(poison)) == {"messages": 2}
    bench.drain()
    assert run(bench, "drop", "--topic", topic) == {"messages": 1}
    assert failed_messages(bench.sql) == []
    bench.drain()
    assert bench.values(topic) == ["1", "2"]
    run(bench, "drop", code=2)
    assert run(bench, "pause", topic, "--by", "alice") == {"name": f"topic {topic}", "paused": True, "changed": True}
    assert run(bench, "pause", topic)["changed"] is False
    (paused,) = run(bench, "status")["paused"]
    assert (paused["part"], paused["name"], paused["by"]) == ("outbox", topic, "alice")
    bench.publish(topic, "3")
    run(bench, "run", "--once", code=1)
    assert run(bench, "resume", topic)["changed"] is True
    lines = run(bench, "log")["lines"]
    assert [line["action"] for line in lines] == ["resume", "pause", "drop", "retry"]


def test_messages_to_a_mistyped_topic_are_dropped(bench: Bench) -> None:
    topic, mistyped = bench.topic(), "no-such-topic"
    kept = bench.publish(topic, "1")
    for payload in ("2", "3"):
        bench.publish(mistyped, payload)
    assert run(bench, "run", "--once", "--topic", mistyped, code=1) is None
    statuses = {status["topic"]: status for status in run(bench, "status")["topics"]}
    assert f"compactory outbox drop --topic {mistyped}" in statuses[mistyped]["last_error"]
    assert run(bench, "drop", "--topic", topic) == {"messages": 0}  # Kafka has it: they wait for a relay
    assert run(bench, "drop", "--topic", mistyped) == {"messages": 2}
    assert [row[0] for row in bench.sql.execute("SELECT id FROM compactory.kafka_messages")] == [kept]
    assert run(bench, "run", "--once") == {"sent": {topic: 1}}
    assert not any(status["error"] for status in run(bench, "status")["topics"])


def test_a_relay_shows_itself_and_ends_well(bench: Bench) -> None:
    topic = bench.topic()
    port = free_port()
    command = [sys.executable, "-m", "compactory_cli", "outbox", "run", "--listen", f"127.0.0.1:{port}"]
    relay = subprocess.Popen([*command, "--postgres", bench.url, "--kafka", bench.address])
    try:

        def ready() -> bool:
            try:
                return urllib.request.urlopen(f"http://127.0.0.1:{port}/readyz", timeout=2).status == 200
            except OSError:
                return False

        wait_until(ready, what="readiness")
        bench.publish(topic, "v")
        bench.wait_for(topic, "v")
        metrics = urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=5).read().decode()
        assert f'compactory_outbox_sent_total{{topic="{topic}"}} 1.0' in metrics
        relay.send_signal(signal.SIGTERM)
        assert relay.wait(20) == 0
    finally:
        relay.kill()
    assert bench.info(topic, "locked_by") is None


def test_a_relay_that_is_stopped_before_all_is_sent_is_not_done(bench: Bench) -> None:
    topic = bench.topic()
    bench.publish(topic, "1")
    bench.drain()
    bench.publish(topic, "2")
    bench.sql.execute("UPDATE compactory.kafka_topic_info SET locked_by = 'x', locked_at = clock_timestamp() + '9 s'")
    command = [sys.executable, "-m", "compactory_cli", "outbox", "run", "--once"]
    urls = ["--postgres", bench.url, "--kafka", bench.address]
    relay = subprocess.Popen([*command, *urls], stdout=subprocess.PIPE, text=True)
    try:
        senders = "SELECT count(*) > 2 FROM pg_stat_activity WHERE application_name LIKE 'compactory-outbox %'"
        wait_until(lambda: bench.sql.execute(senders).fetchone() == (True,), what="the relay's sessions")
        relay.send_signal(signal.SIGTERM)
        out, _ = relay.communicate(timeout=30)
    finally:
        relay.kill()
    assert (relay.returncode, out) == (130, "outbox stopped: nothing was sent\n")
