"""``compactory topic create`` on a real broker."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from compactory.kafka.client import Kafka
from tests.cli.conftest import ARTICLE, in_process


def test_topics_are_created_as_the_configuration_says(
    kafka: str, unique: Callable[[str], str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    prefix = unique("p") + "-"
    plain, terminals, tenants = unique("plain"), f"{prefix}terminal_acquirer", unique("tenants")
    monkeypatch.chdir(tmp_path)
    connector = json.loads(ARTICLE.read_text()) | {
        "connection.url": "jdbc:postgresql://localhost/d",
        "connection.user": "u",
        "connection.password": "p",
        "topic.prefix": prefix,
        "topic.creation.default.partitions": "3",
        "topic.creation.default.replication.factor": "1",
        "topic.creation.default.segment.ms": "86400000",
    }
    (tmp_path / "c.json").write_text(json.dumps(connector))
    toml = f"""
        [kafka]
        bootstrap.servers = "{kafka}"
        [topics]
        partitions = 2
        [directories.terminals]
        topic = "{terminals}"
        connector = "c.json"
        [directories.tenants]
        topic = "{tenants}"
        mastered = "kafka"
        min_insync_replicas = 2
    """
    (tmp_path / "compactory.toml").write_text(toml)
    outcome = in_process("topic", "create", "--json")
    assert (outcome.code, outcome.err) == (0, "")
    assert outcome.json["topics"] == [
        {"topic": terminals, "created": True, "partitions": 3, "cleanup_policy": "compact", "problem": None},
        {"topic": tenants, "created": True, "partitions": 2, "cleanup_policy": "compact", "problem": None},
    ]
    configs = Kafka(kafka).topic_configs([terminals, tenants])
    assert configs[terminals]["segment.ms"] == "86400000"
    assert configs[tenants]["min.insync.replicas"] == "2"
    again = in_process("topic", "create", "tenants", plain, "--partitions", "4")
    assert again.code == 0
    assert f"{tenants}: 2 partitions, cleanup.policy=compact; it exists already" in again.out
    assert f"created {plain}: 4 partitions, cleanup.policy=compact" in again.out


def test_a_topic_that_drops_records_is_named_with_the_remedy(kafka: str, unique: Callable[[str], str]) -> None:
    events = unique("events")
    created = in_process("topic", "create", events, "--no-compact", "--kafka", kafka)
    assert (created.code, "cleanup.policy=delete" in created.out) == (0, True)
    assert in_process("topic", "create", events, "--no-compact", "--kafka", kafka).code == 0
    refused = in_process("topic", "create", events, "--kafka", kafka)
    assert refused.code == 1
    assert f"kafka-configs.sh --alter --topic {events} --add-config cleanup.policy=compact" in refused.out


def test_what_a_broker_refuses_is_said(kafka: str, unique: Callable[[str], str]) -> None:
    name = unique("t")
    few = in_process("topic", "create", name, "--replication", "9", "--kafka", kafka)
    assert few.code in {1, 2}
    assert "replication factor" in few.err.lower()
    wrong = in_process("topic", "create", "a b", "--kafka", kafka)
    assert wrong.code in {1, 2}
    assert "'a b'" in wrong.err
    assert in_process("topic", "create", "--kafka", kafka).code == 2
