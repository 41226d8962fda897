"""``compactory sink`` as an operator runs it: exit codes, tables and JSON; its probes over HTTP."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import psycopg
import pytest

from compactory_cli.stack.port import free_port
from tests.sink.harness import Bench, committed
from tests.source.workload import wait_until
from tests.stack.command import run_command
from tests.stack.proxy import Proxy

ACCOUNTS = "CREATE TABLE accounts (id text PRIMARY KEY, name text NOT NULL, balance int4 CHECK (balance < 1000))"


def written(bench: Bench, folder: Path, topic: str, **keys: str) -> Path:
    """The configuration of a sink of the topic."""
    config = {
        "name": bench.name,
        "topics": topic,
        "connection.url": bench.url,
        "table.name.format": "accounts",
        "insert.mode": "upsert",
        "pk.mode": "record_key",
        "pk.fields": "id",
        "errors.tolerance": "all",
        "value.converter.schemas.enable": "false",
    }
    file = folder / "sink.json"
    file.write_text(json.dumps({**config, **keys}))
    return file


def tell(bench: Bench, *words: str | Path, code: int = 0) -> str:
    common = ("--postgres", bench.url, "--kafka", bench.address)
    done = run_command(["sink", *words, *common], folder=Path.cwd(), environment={**os.environ, "COLUMNS": "200"})
    assert done.returncode == code, done.stdout + done.stderr
    return done.stdout + done.stderr


def ask(bench: Bench, *words: str | Path, code: int = 0) -> Any:
    return json.loads(tell(bench, *words, "--json", code=code).splitlines()[0])


@contextmanager
def running(bench: Bench, file: Path, *words: str) -> Iterator[tuple[subprocess.Popen[bytes], str]]:
    address = f"127.0.0.1:{free_port()}"
    command = [sys.executable, "-m", "compactory_cli", "sink", "run", str(file), "--kafka", bench.address, *words]
    process = subprocess.Popen([*command, "--listen", address])
    try:
        yield process, f"http://{address}"
    finally:
        process.kill()
        process.wait()


def probe(url: str) -> int:
    try:
        return int(urllib.request.urlopen(url, timeout=5).status)
    except urllib.error.HTTPError as error:
        return error.code
    except OSError:
        return 0


def get(url: str) -> str:
    return str(urllib.request.urlopen(url, timeout=5).read().decode())


def payments(bench: Bench, topic: str, *balances: int) -> None:
    bench.produce(topic, [(f"k{n}", json.dumps({"name": "N", "balance": n})) for n in balances])


def test_a_configuration_that_is_wrong_ends_with_2_and_all_problems(bench: Bench, tmp_path: Path) -> None:
    file = written(bench, tmp_path, "t", **{"insert.mod": "upsert", "batch.size": "0"})
    told = tell(bench, "run", file, code=2)
    assert "insert.mod: unknown key; did you mean insert.mode?" in told
    assert "batch.size:" in told


def test_an_operators_round(bench: Bench, tmp_path: Path) -> None:
    bench.sql.execute(ACCOUNTS)
    topic, name = bench.topic(), bench.name
    assert "no sink has written to this database yet" in tell(bench, "status")
    file = written(bench, tmp_path, topic)
    payments(bench, topic, 1, 5000, 6000, 2)
    bench.produce(topic, [("k5000", json.dumps({"name": "later", "balance": 1}))])
    with running(bench, file):
        bench.wait_for_end(topic)
        wait_until(lambda: committed(bench, topic) == 5, what="the offset in Kafka")
        (status,) = ask(bench, "status", name)["partitions"]
        assert [status[word] for word in ("sink", "offset", "lag", "failed", "waiting")] == [name, 5, 0, 2, 1]
        assert topic in tell(bench, "status")
        failed = ask(bench, "failed", name, code=1)["records"]
        assert [(item["offset"], item["key"]) for item in failed] == [(1, "k5000"), (2, "k6000"), (4, "k5000")]
        assert "accounts_balance_check" in failed[0]["reason"]
        assert "waits for an earlier one of its key" in tell(bench, "failed", name, "--topic", topic, code=1)
        assert "no such record is set aside" in tell(bench, "drop", name, "--offset", "3", code=1)
        assert "give --topic, --partition or --offset, or --all" in tell(bench, "drop", name, code=2)
        assert ask(bench, "drop", name, "--topic", topic, "--partition", "0", "--offset", "2") == {"records": 1}
        bench.sql.execute("ALTER TABLE accounts DROP CONSTRAINT accounts_balance_check")
        assert ask(bench, "retry", name, "--offset", "1") == {"records": 2}
        wait_until(lambda: ask(bench, "status", name)["partitions"][0]["failed"] == 0, what="the second try")
        assert ask(bench, "failed", name)["records"] == []
        rows = [("k1", "N", 1), ("k2", "N", 2), ("k5000", "later", 1)]
        wait_until(lambda: bench.rows("SELECT * FROM accounts ORDER BY id") == rows, what="the rows")
        bench.sql.execute("TRUNCATE accounts")
        assert ask(bench, "offsets", "set", name, topic, "0", "3")["offset"] == 3
        payments(bench, topic, 3)
        bench.wait_for_end(topic)
    assert bench.rows("SELECT id FROM accounts ORDER BY id") == [("k2",), ("k3",), ("k5000",)]
    (shown,) = ask(bench, "offsets", "show", name)["partitions"]
    assert (shown["topic"], shown["offset"]) == (topic, 6)
    assert "continues at offset 0" in tell(bench, "offsets", "set", name, topic, "0", "earliest")
    assert f"sink {name} is paused" in tell(bench, "pause", name, "--by", "alice")
    assert f"\nsink {name} " in tell(bench, "status", name)
    assert f"sink {name} was paused before" in tell(bench, "pause", name)
    assert f"sink {name} is running" in tell(bench, "resume", name)
    actions = [line["action"] for line in ask(bench, "log")["lines"]]
    assert actions == ["resume", "pause", "set-offset", "set-offset", "retry", "drop"]


def test_a_status_without_kafka_lacks_the_lag_alone(bench: Bench, tmp_path: Path) -> None:
    """A program still gets one JSON document, and the reason is on stderr."""
    bench.sql.execute(ACCOUNTS)
    topic = bench.topic()
    with running(bench, written(bench, tmp_path, topic)):
        payments(bench, topic, 1)
        wait_until(lambda: bench.rows("SELECT id FROM accounts") == [("k1",)], what="the row")
    words = ["sink", "status", bench.name, "--json", "--postgres", bench.url]
    done = run_command(words, folder=tmp_path, environment=os.environ)
    (status,) = json.loads(done.stdout)["partitions"]
    assert (status["offset"], status["lag"]) == (1, None)
    assert "warning: no lag: which Kafka?" in done.stderr


def test_offsets_that_can_not_be_are_refused(bench: Bench) -> None:
    topic = bench.topic()
    for words, told in (
        (["s", topic, "0", "7"], "the log has offsets 0 to 0, and not 7"),
        (["s", topic, "0", "x"], "must be a number, earliest or latest"),
        (["s", topic, "9", "0"], "there is no partition 9"),
        (["s", topic, "0", "0"], "no sink 's' has written partition 0"),
    ):
        assert told in " ".join(tell(bench, "offsets", "set", *words, code=2).split())


@pytest.mark.parametrize("words", [["status"], ["offsets", "show"], ["failed"], ["retry"], ["pause"]], ids=" ".join)
def test_a_sink_that_never_wrote_is_refused_by_name(bench: Bench, words: list[str]) -> None:
    told = " ".join(tell(bench, *words, "nobody", code=2).split())
    assert "no sink 'nobody' has written to this database" in told


def test_probes_show_an_outage_and_a_batch_that_hangs(bench: Bench, tmp_path: Path) -> None:
    """Not ready before Postgres was reached, alive all the same; a batch that hangs is not live."""
    bench.sql.execute(ACCOUNTS)
    bench.sql.execute("INSERT INTO accounts VALUES ('k1', 'old', 0)")
    topic, place = bench.topic(), urlsplit(bench.url)
    payments(bench, topic, 1)
    network = Proxy()
    file = written(
        bench, tmp_path, topic, **{"connection.url": bench.url.replace(f":{place.port}", f":{network.port}")}
    )
    with running(bench, file, "--consuming-ttl", "0.5") as (process, url), psycopg.connect(bench.url) as other:
        wait_until(lambda: probe(f"{url}/readyz") == 503, what="a process that listens")
        assert probe(f"{url}/livez") == 200
        other.execute("SELECT FROM accounts FOR UPDATE")
        network.target = place.port
        wait_until(lambda: probe(f"{url}/livez") == 503, what="a batch that hangs")
        other.rollback()
        wait_until(lambda: (probe(f"{url}/livez"), probe(f"{url}/readyz")) == (200, 200), what="its end")
        bench.wait_for_end(topic)
        applied = f'compactory_sink_rows_total{{partition="0",sink="{bench.name}",topic="{topic}"}} 1.0'
        wait_until(lambda: applied in get(f"{url}/metrics"), what="the figure")
        process.send_signal(signal.SIGTERM)
        assert process.wait(20) == 0
    network.close()


def test_a_process_that_does_not_poll_is_not_live(bench: Bench, tmp_path: Path) -> None:
    bench.sql.execute(ACCOUNTS)
    file = written(bench, tmp_path, bench.topic())
    with running(bench, file, "--polling-ttl", "0") as (_, url):
        wait_until(lambda: probe(f"{url}/livez") == 503, what="the probe")
