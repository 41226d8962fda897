"""The rules for writes of a directory mastered in Kafka, and checks of the directories and topics that they need."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from compactory.directory import Directory
from compactory.errors import ConfigError, extra_remedy

__all__ = ["WriteRules", "key_matcher", "rule_problems", "topic_problems"]

_DAY = 86_400.0
_LISTS = ("key_from", "internal", "outcomes")


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class WriteRules:
    """The rules that each write of a directory mastered in Kafka has to obey. Immutable.

    ``schema``      a JSON Schema for values; None: only the directory's ``decode`` checks them (a pydantic model, say)
    ``key_pattern``  a regular expression that a whole key must match, without lookaround and backreferences
    ``key_from``    fields from whose values a POST derives the key
    ``unique``      lists of fields whose values no two entries share; each needs a unique `Index` of the directory
    ``references``  field → directory of the same store that must have an entry with the field's value as its key
    ``internal``    top-level fields that no answer shows; a PUT that leaves them out keeps them
    ``outcomes``    directories of the same store to which processors write outcomes of writes
    ``remember``    seconds for which the first answer to an Idempotency-Key is kept
    ``remember_at_most``  number of those answers; beyond it the oldest are forgotten
    ``remember_bytes``  bytes of those answers; beyond it the oldest are forgotten
    ``min_insync_replicas``  the least ``min.insync.replicas`` that the topic may have

    Raises ConfigError with every problem at once.
    """

    schema: Mapping[str, Any] | None = field(default=None, repr=False)
    key_pattern: str | None = None
    key_from: tuple[str, ...] = ()
    unique: tuple[tuple[str, ...], ...] = ()
    references: Mapping[str, str] = field(default_factory=dict)
    internal: tuple[str, ...] = ()
    outcomes: tuple[str, ...] = ()
    remember: float = _DAY
    remember_at_most: int = 100_000
    remember_bytes: int = 64 << 20
    min_insync_replicas: int = 1

    def __post_init__(self) -> None:
        problems = list(_problems(self))
        if problems:
            raise ConfigError(problems)
        for name in _LISTS:
            object.__setattr__(self, name, tuple(getattr(self, name)))
        object.__setattr__(self, "unique", tuple(map(tuple, self.unique)))

    def hides(self, field: str) -> bool:
        """Return True if this field is internal or a part of an internal field, so that answers do not show it."""
        return field in self.internal or field.partition(".")[0] in self.internal

    def shown(self, document: dict[str, Any]) -> dict[str, Any]:
        """Return a value as answers show it: without its internal fields."""
        if document.keys().isdisjoint(self.internal):
            return document
        return {name: value for name, value in document.items() if name not in self.internal}


def _problems(rules: WriteRules) -> Iterator[str]:
    if rules.schema is not None:
        yield from _schema_problems(rules.schema)
    if rules.key_pattern is not None:
        yield from _pattern_problems(rules.key_pattern)
    for name in _LISTS:
        if not _are_texts(getattr(rules, name)):
            yield f'{name} must be a list of texts, such as ["email"]'
    unique: Any = rules.unique
    if isinstance(unique, str) or not all(fields and _are_texts(fields) for fields in unique):
        yield 'unique must be a list of lists of fields, such as [["email"]]'
    if not 0 < rules.remember <= 366 * _DAY:
        yield "remember must be a number of seconds above 0 and at most a year"
    if not 0 < rules.remember_at_most <= 10_000_000:
        yield "remember_at_most must be a number from 1 to 10,000,000"
    if rules.remember_bytes < 1 << 20:
        yield "remember_bytes must be a number of bytes, at least 1,048,576"
    if rules.min_insync_replicas < 1:
        yield "min_insync_replicas must be 1 or more"


def key_matcher(pattern: str) -> Callable[[str], bool]:
    """Return the function that returns True if a whole key matches; its time is linear in the length of the key.

    Raises ValueError for a pattern that can't be matched in linear time, ImportError without jsonschema-rs.
    """
    import jsonschema_rs

    linear = jsonschema_rs.RegexOptions()  # never backtracks
    # Refuse `a)|(b`, which would be valid within the group below.
    jsonschema_rs.validator_for({"pattern": pattern}, pattern_options=linear)
    schema = {"type": "string", "pattern": f"^(?:{pattern})$"}
    return jsonschema_rs.validator_for(schema, pattern_options=linear).is_valid


def _are_texts(values: Any) -> bool:
    """Return True if this is a list of texts. A single text is refused: it would count as a list of letters."""
    is_list = isinstance(values, Collection) and not isinstance(values, str)
    return is_list and all(isinstance(value, str) for value in values)


def _pattern_problems(pattern: str) -> Iterator[str]:
    try:
        key_matcher(pattern)
    except ImportError:
        yield f"key_pattern needs the package jsonschema-rs: {extra_remedy('api')}"
    except ValueError:
        yield (
            f"key_pattern {pattern!r} is not a regular expression that can be checked in linear time:"
            " lookaround, backreferences and very large repetitions are not possible"
        )


def _schema_problems(schema: Mapping[str, Any]) -> Iterator[str]:
    try:
        import jsonschema_rs
    except ImportError:
        yield f"schema needs the package jsonschema-rs: {extra_remedy('api')}"
        return
    try:
        jsonschema_rs.validator_for(dict(schema))
    except (ValueError, TypeError) as error:
        yield f"schema is not a JSON Schema: {str(error).splitlines()[0]}"


def rule_problems(directories: Iterable[Directory[Any]]) -> list[str]:
    """Return every problem of the rules of all directories of one store."""
    by_name = {directory.name: directory for directory in directories}
    return [
        problem
        for directory in by_name.values()
        if directory.rules
        for problem in _directory_problems(directory, directory.rules, by_name)
    ]


def topic_problems(topic: str, config: Mapping[str, str], rules: WriteRules) -> Iterator[str]:
    """Yield every problem of the configuration of a topic that is the only copy of its entries."""
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
            f"topic {topic!r} has min.insync.replicas={replicas}, and the directory needs"
            f" {rules.min_insync_replicas}; {alter} min.insync.replicas={rules.min_insync_replicas}"
        )


def _directory_problems(directory: Directory[Any], rules: Any, names: Collection[str]) -> Iterator[str]:
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
            quoted = ", ".join(f'"{field}"' for field in fields)
            yield f"{where}: unique [{quoted}] needs an index: indexes = [{{fields = [{quoted}], unique = true}}]"
    targets = [(f"references.{name}", target) for name, target in rules.references.items()]
    for name, target in [*targets, *(("outcomes", target) for target in rules.outcomes)]:
        if target not in names:
            yield f"{where}: {name}: there is no directory {target!r}; there are {', '.join(sorted(names))}"
