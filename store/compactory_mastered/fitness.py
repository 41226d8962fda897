"""Checks of directories and topics that are to be mastered in Kafka. They report every problem, before any start."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from compactory.directory import Directory
from compactory_mastered.rules import WriteRules

__all__ = ["rule_problems", "topic_problems"]


def rule_problems(directories: Iterable[Directory[Any]]) -> list[str]:
    """Return what is wrong with the rules of these directories, which belong to one store."""
    given = list(directories)
    names = {directory.name for directory in given}
    return [
        problem for directory in given if directory.rules for problem in _misfits(directory, directory.rules, names)
    ]


def topic_problems(topic: str, config: Mapping[str, str], rules: WriteRules) -> Iterator[str]:
    """Yield what is wrong with the configuration of a topic that holds the only copy of its entries."""
    alter = f"kafka-configs.sh --alter --topic {topic} --add-config"
    policy = config.get("cleanup.policy", "compact")
    if policy != "compact":
        yield (
            f"topic {topic!r} has cleanup.policy={policy}: Kafka would drop entries by age or size;"
            f" {alter} cleanup.policy=compact"
        )
    replicas = int(config.get("min.insync.replicas", rules.min_insync_replicas))
    if replicas < rules.min_insync_replicas:
        yield (
            f"topic {topic!r} has min.insync.replicas={replicas}, and the directory wants"
            f" {rules.min_insync_replicas}; {alter} min.insync.replicas={rules.min_insync_replicas}"
        )


def _misfits(directory: Directory[Any], rules: Any, names: set[str]) -> Iterator[str]:
    where = f"directory {directory.name!r}"
    if not isinstance(rules, WriteRules):
        yield f"{where}: rules must be WriteRules(…), not {type(rules).__name__}"
        return
    if directory.envelope != "none":
        yield f"{where}: a directory mastered in Kafka has no envelope"
    if directory.key is not None:
        yield f"{where}: a directory mastered in Kafka is looked up by the records' keys; remove key"
    if directory.active is not None:
        yield f"{where}: a directory mastered in Kafka deletes by tombstones; remove active"
    if directory.decode in (str, bytes):
        yield f"{where}: a directory mastered in Kafka holds JSON objects, not text or bytes"
    for fields in rules.unique:
        index = directory.index_over(fields)
        if index is None or not index.unique:
            told = ", ".join(f'"{field}"' for field in fields)
            yield f"{where}: unique [{told}] needs an index: indexes = [{{fields = [{told}], unique = true}}]"
    targets = [(f"references.{name}", target) for name, target in rules.references.items()]
    for name, target in [*targets, *(("outcomes", target) for target in rules.outcomes)]:
        if target not in names:
            yield f"{where}: {name}: there is no directory {target!r}; there are {', '.join(sorted(names))}"
