"""``compactory topic create``: creates the topics of directories, outboxes, sinks and processors."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ..context.flags import App, argument, flag, option
from ..context.session import Providers, begin, load_connectors
from ..views.tables import print_lines
from ..views.terminal import counted

if TYPE_CHECKING:
    from compactory.kafka.client import Kafka

    from ..context.configuration import Configuration

__all__ = ["app"]

app = App(name="topic", help="Create topics.")

_VISIBLE = 5.0  # seconds in which a broker describes a new topic
_POLICY, _REPLICAS = "cleanup.policy", "min.insync.replicas"


@app.command("create")
def create_topics(
    names: Annotated[list[str] | None, argument("[DIRECTORY|TOPIC]…", "Directories (default: all), or topics.")] = None,
    partitions: Annotated[int | None, option("--partitions", "N", "Partitions of each topic.", min=1)] = None,
    replication: Annotated[int | None, option("--replication", "N", "Replicas of each partition.", min=1)] = None,
    no_compact: Annotated[bool, flag("--no-compact", "Keep all records for the retention time, for events.")] = False,
    provider: Providers = None,
) -> None:
    """Create topics that keep the newest record of each key. Leaves topics that exist as they are.

    Partitions and replicas come from the flags, else from the directory's connector (topic.creation.*), else from
    [topics] of compactory.toml, else from the broker. Exit code 1 if a topic exists and drops records that it should
    keep.

    Example: `compactory topic create tenants --partitions 6 --replication 3`
    """
    configuration = begin()
    kafka = configuration.kafka()
    topics: dict[str, dict[str, Any]] = {}
    for name in configuration.chosen(names or (), "topic create"):
        topic, settings = _requested(configuration, name, provider or (), is_compacted=not no_compact)
        topics[topic] = settings | {
            "partitions": partitions or settings["partitions"],
            "replication": replication or settings["replication"],
        }
    created = {topic: kafka.create_topic(topic, **settings) for topic, settings in topics.items()}
    results = [_result(kafka, topic, created[topic], settings) for topic, settings in topics.items()]
    print_lines("topics", results, _topic_line)
    if any(result["problem"] for result in results):
        raise typer.Exit(1)


def _topic_line(result: dict[str, Any]) -> str:
    text = f"{result['topic']}: {counted(result['partitions'], 'partition')}, {_POLICY}={result['cleanup_policy']}"
    if result["problem"] is not None:
        return f"[red]✗[/] {text}; {result['problem']}"
    return f"[green]✓[/] created {text}" if result["created"] else f"[green]✓[/] {text}; it exists already"


def _requested(
    configuration: Configuration, name: str, providers: Sequence[str], *, is_compacted: bool
) -> tuple[str, dict[str, Any]]:
    """Return the topic of a directory, or of this name, and its settings. Raises ConfigError."""
    partitions, replication = configuration.topic_defaults
    config = {_POLICY: "compact"} if is_compacted else {}
    topic, settings = name, configuration.directories.get(name)
    if settings is not None:
        topic, rules = settings.directory.topic, settings.directory.rules
        if rules is not None and rules.min_insync_replicas > 1:
            config[_REPLICAS] = str(rules.min_insync_replicas)
        if settings.connector is not None:
            for connector in load_connectors([settings.connector], providers)[:1]:
                creation = connector.topics
                config |= creation.configs
                partitions = creation.partitions if creation.partitions > 0 else partitions
                replication = creation.replication_factor if creation.replication_factor > 0 else replication
    return topic, {"partitions": partitions, "replication": replication, "config": config}


def _result(kafka: Kafka, topic: str, created: bool, settings: dict[str, Any]) -> dict[str, Any]:
    """Return a topic as it is now; ``problem`` says what an existing one lacks, with the command that mends it."""
    requested: dict[str, str] = settings["config"]
    deadline = time.monotonic() + _VISIBLE
    while True:
        description, config = kafka.topics([topic]).get(topic), kafka.topic_configs([topic]).get(topic)
        if (description is not None and config is not None) or time.monotonic() >= deadline:
            break
        time.sleep(0.05)
    config = requested | (config or {})
    lacking = [name for name in (_POLICY,) if name in requested and config[name] != requested[name]]
    lacking += [_REPLICAS] if int(config.get(_REPLICAS, 1)) < int(requested.get(_REPLICAS, 1)) else []
    changes = ",".join(f"{name}={requested[name]}" for name in lacking)
    problem = f"run kafka-configs.sh --alter --topic {topic} --add-config {changes}" if lacking else None
    return {
        "topic": topic,
        "created": created,
        "partitions": len(description.partitions) if description is not None else max(settings["partitions"], 1),
        "cleanup_policy": config.get(_POLICY, "delete"),
        "problem": None if created else problem,
    }
