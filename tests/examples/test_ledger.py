"""The ledger example on real Kafka and Postgres, by the commands of its README: exact under kills."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import psycopg

from compactory.kafka.client import Kafka
from tests.source.workload import wait_until

ROOT = Path(__file__).parents[2]
README = (ROOT / "examples" / "ledger" / "README.md").read_text()


def compactory(words: str, environment: dict[str, str]) -> tuple[int, str]:
    assert f"compactory {words.partition(' --')[0]}" in README
    command = [str(Path(sys.executable).with_name("compactory")), *words.split()]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60, check=False)
    return done.returncode, done.stdout


def ledger(environment: dict[str, str]) -> subprocess.Popen[bytes]:
    found = re.search(r"python (examples/ledger/ledger.py) &", README)
    assert found is not None
    return subprocess.Popen([sys.executable, found[1]], env=environment, cwd=ROOT)


def test_every_payment_is_counted_once(database: str, kafka: str, unique: Callable[[str], str]) -> None:
    """Guarantee 16, under kills."""
    topic, client = unique("payments"), Kafka(kafka)
    environment = {**os.environ, "COMPACTORY_POSTGRES": database, "COMPACTORY_KAFKA": kafka, "LEDGER_TOPIC": topic}
    environment["LEDGER_INSTANCE"] = "one"
    assert compactory("sql install", environment)[0] == 0
    client.create_topic(topic, partitions=4)
    found = re.search(r"CREATE TABLE accounts [^']+", README)
    assert found is not None
    with psycopg.connect(database, autocommit=True) as connection:
        connection.execute(found[0].encode())

        def payments() -> int:
            row = connection.execute(
                "SELECT coalesce(sum(payments), 0), coalesce(sum(total), 0) FROM accounts"
            ).fetchone()
            assert row is not None
            assert row[1] == row[0] * 100
            return int(row[0])

        def set_aside() -> int:
            row = connection.execute("SELECT count(*) FROM compactory.kafka_failed_records").fetchone()
            assert row is not None
            return int(row[0])

        producer = client.producer({}, {"enable.idempotence": True}, lambda _: None)
        for number in range(3000):
            payment = {"account": f"C{number % 20}", "cents": 100}
            producer.produce(topic, json.dumps(payment), payment["account"])
        producer.produce(topic, "{}", "nobody")
        assert producer.flush(30) == 0
        for least, failed in ((1, 0), (1000, 0), (3000, 1)):
            process = ledger(environment)
            try:
                wait_until(
                    lambda least=least, failed=failed: payments() >= least and set_aside() >= failed,
                    what=f"{least} payments, {failed} set aside",
                )
            finally:
                process.kill()
                process.wait()
        assert payments() == 3000
    code, told = compactory("sink failed ledger --json", environment)
    assert code == 1
    assert [item["reason"] for item in json.loads(told)["records"]] == ["is no payment: account or cents is missing"]
    code, told = compactory("sink status ledger --json", environment)
    assert (code, sum(item["lag"] for item in json.loads(told)["partitions"])) == (0, 0)
