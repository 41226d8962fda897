"""``compactory topic create``: creates the topics of directories, outboxes, sinks and processors."""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Annotated

import typer

from ..context.flags import App, argument, flag, option
from ..context.loading import Providers, load_connectors
from ..context.session import begin
from ..views.terminal import counted, print_json, say, wants_json

if TYPE_CHECKING:
    from compactory.kafka.client import Kafka

    from ..context.configuration import Configuration

__all__ = ["app"]

app = App(name="topic", help="Create topics.")

_VISIBLE = 5.0  # seconds in which a broker describes a new topic
_POLICY, _REPLICAS = "cleanup.policy", "min.insync.replicas"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Topic:
    """A topic to create; -1 means the broker's default."""

    name: str
    partitions: int
    replication: int
    config: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Result:
    """A topic as it is now; ``problem`` says how an existing topic differs from what its users need."""

    topic: str
    created: bool
    partitions: int
    cleanup_policy: str
    problem: str | None = None

    def line(self) -> str:
        """Return the result as markup."""
        text = f"{self.topic}: {counted(self.partitions, 'partition')}, {_POLICY}={self.cleanup_policy}"
        if self.problem is not None:
            return f"[red]✗[/] {text}; {self.problem}"
        return f"[green]✓[/] created {text}" if self.created else f"[green]✓[/] {text}; it exists already"


@app.command("create")
def create_topics(
    names: Annotated[
        list[str] | None, argument("[DIRECTORY|TOPIC]…", "Directories of compactory.toml (default: all), or topics.")
    ] = None,
    partitions: Annotated[int | None, option("--partitions", "N", "Partitions of each topic.", min=1)] = None,
    replication: Annotated[int | None, option("--replication", "N", "Replicas of each partition.", min=1)] = None,
    no_compact: Annotated[
        bool, flag("--no-compact", "Keep all records for the broker's retention time, as events need it.")
    ] = False,
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
    topics = {
        topic.name: topic
        for name in configuration.chosen(names or (), "topic create")
        for topic in [_requested_topic(configuration, name, partitions, replication, no_compact, provider or ())]
    }
    results = _create(kafka, topics.values())
    if wants_json():
        print_json({"topics": [asdict(result) for result in results]})
    else:
        for result in results:
            say(result.line())
    if any(result.problem for result in results):
        raise typer.Exit(1)


def _requested_topic(
    configuration: Configuration,
    name: str,
    partitions: int | None,
    replication: int | None,
    no_compact: bool,
    providers: Iterable[str],
) -> _Topic:
    """Return the topic of a directory, or of this name. Raises ConfigError for a connector that is unusable."""
    default_partitions, default_replication = configuration.topic_defaults
    config = {} if no_compact else {_POLICY: "compact"}
    topic, settings = name, configuration.directories.get(name)
    if settings is not None:
        topic, rules = settings.directory.topic, settings.directory.rules
        if rules is not None and rules.min_insync_replicas > 1:
            config[_REPLICAS] = str(rules.min_insync_replicas)
        if settings.connector is not None:
            creations = [item.topics for item in load_connectors([settings.connector], list(providers))]
            for creation in creations[:1]:
                config |= creation.configs
                default_partitions = creation.partitions if creation.partitions > 0 else default_partitions
                factor = creation.replication_factor
                default_replication = factor if factor > 0 else default_replication
    return _Topic(
        name=topic,
        partitions=partitions or default_partitions,
        replication=replication or default_replication,
        config=config,
    )


def _create(kafka: Kafka, topics: Iterable[_Topic]) -> list[_Result]:
    created = {
        topic.name: kafka.create_topic(
            topic.name, partitions=topic.partitions, replication=topic.replication, config=topic.config
        )
        for topic in topics
    }
    deadline = time.monotonic() + _VISIBLE
    descriptions, configs = kafka.topics(created), kafka.topic_configs(created)
    while not created.keys() <= descriptions.keys() & configs.keys() and time.monotonic() < deadline:
        time.sleep(0.05)
        descriptions, configs = kafka.topics(created), kafka.topic_configs(created)
    results = []
    for topic in topics:
        config = topic.config | configs.get(topic.name, {})
        description = descriptions.get(topic.name)
        results.append(
            _Result(
                topic=topic.name,
                created=created[topic.name],
                partitions=len(description.partitions) if description is not None else max(topic.partitions, 1),
                cleanup_policy=config.get(_POLICY, "delete"),
                problem=None if created[topic.name] else _problem(topic, config),
            )
        )
    return results


def _problem(topic: _Topic, config: dict[str, str]) -> str | None:
    """Return what an existing topic lacks, with the command that mends it; None if nothing."""
    policy = topic.config.get(_POLICY)
    lacking = {_POLICY: policy} if policy is not None and config.get(_POLICY, policy) != policy else {}
    if int(config.get(_REPLICAS, 1)) < (replicas := int(topic.config.get(_REPLICAS, 1))):
        lacking[_REPLICAS] = str(replicas)
    if not lacking:
        return None
    settings = ",".join(f"{name}={value}" for name, value in lacking.items())
    return f"run kafka-configs.sh --alter --topic {topic.name} --add-config {settings}"
