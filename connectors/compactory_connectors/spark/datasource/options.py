"""The options of ``format("compactory")``, checked as a whole. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Literal, cast, get_args

from compactory.directory import Envelope
from compactory.errors import ConfigError
from compactory.nearest import nearest
from compactory.records import is_topic_name
from compactory_connectors.connect.converters.schema_registry import RegistryConverter

__all__ = ["Keys", "ReadOptions", "Use", "ValueFormat", "write_problems"]

Keys = Literal["auto", "java", "librdkafka", "single", "any"]
"""Which partitions have a key: the one that a partitioner chooses, a single one that nobody checks, or any."""

Use = Literal["any", "batch", "stream"]
"""Options of ``spark.read`` or of ``readStream``; Spark does not tell which when it asks for a schema."""

ValueFormat = Literal["json", "avro", "json-schema"]
"""The format of values. Those of avro and json-schema begin with the id of a schema in a registry."""

_TOPICS: Final = ("directory", "topic", "subscribe", "subscribePattern")
_KAFKA: Final = "kafka."
_REGISTRY: Final = ("schema.registry.", "basic.auth.")
_BOOLEAN: Final = ("true", "false")
_CHOICES: Final[Mapping[str, tuple[str, ...]]] = {
    "raw": _BOOLEAN,
    "versions": _BOOLEAN,
    "failOnDataLoss": _BOOLEAN,
    "keys": get_args(Keys),
    "decimal": ("number", "base64"),
    "envelope": get_args(Envelope),
    "valueFormat": get_args(ValueFormat),
}
_COUNTS: Final = ("minPartitions", "maxOffsetsPerTrigger", "samplingRecords", "taskMemory")
_STREAM: Final = ("startingOffsets", "maxOffsetsPerTrigger")
_BATCH: Final = ("versions", "at", "keys", "minPartitions", "taskMemory")
_TYPED: Final = ("versions", "connector", "decimal", "active", "envelope", "keys", "valueFormat", "samplingRecords")
_NAMES: Final = (*_TOPICS, *_CHOICES, *_COUNTS, "at", "connector", "active", "wait", "startingOffsets")


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadOptions:
    """The options of a read. They travel to the executors with logins: never log them."""

    kafka: Mapping[str, Any] = field(repr=False)
    topics: Sequence[str] = ()
    """Topics by name; empty where ``pattern`` names them."""
    pattern: str | None = None
    raw: bool = False
    versions: bool = False
    """Each record is a row, as in a stream."""
    at: str | None = None
    connector: Path | None = None
    active: str | None = None
    envelope: Envelope = "none"
    value_format: ValueFormat = "json"
    registry: Mapping[str, str] = field(default_factory=dict, repr=False)
    """Properties of the registry's client, by the names of Confluent's converters."""
    converter: RegistryConverter | None = field(default=None, repr=False)
    """The converter that wrote values of avro and json-schema."""
    base64_decimals: bool | None = None
    """Decimals are texts of Base64, as Connect writes them by default; None: neither option nor connector says."""
    keys: Keys = "auto"
    fails_on_loss: bool = True
    min_partitions: int = 1
    task_memory: int = 512 << 20
    """Bytes of keys and values that a task holds."""
    sample: int = 10_000
    """Newest offsets of each partition by which ``load()`` without a schema finds the columns."""
    wait: float = 60.0
    """Seconds to wait for an open transaction."""
    starting: str = "earliest"
    max_offsets: int | None = None
    """Offsets of a micro-batch; None: all that there are."""

    @classmethod
    def read(cls, options: Mapping[str, str], use: Use = "any") -> ReadOptions:
        """Return the options, whose names Spark gives in any case. Raises ConfigError with all problems."""
        by_name = {name.lower(): value for name, value in options.items()}
        if problems := list(_problems(by_name, use)):
            raise ConfigError(problems)

        def option(name: str, default: str = "") -> str:
            return by_name.get(name.lower(), default)

        connector, limit, decimal = option("connector"), option("maxOffsetsPerTrigger"), option("decimal")
        subscribed = [name.strip() for name in option("subscribe").split(",") if name.strip()]
        topic = option("topic") or option("directory")
        return cls(
            kafka={name.removeprefix(_KAFKA): value for name, value in by_name.items() if name.startswith(_KAFKA)},
            topics=(topic,) if topic else tuple(dict.fromkeys(subscribed)),
            pattern=option("subscribePattern") or None,
            raw=option("raw") == "true",
            versions=option("versions") == "true",
            at=by_name.get("at"),
            connector=Path(connector) if connector else None,
            active=option("active") or None,
            envelope=cast("Envelope", option("envelope", "none")),
            value_format=cast("ValueFormat", option("valueFormat", "json")),
            registry={name: value for name, value in by_name.items() if name.startswith(_REGISTRY)},
            base64_decimals=decimal == "base64" if decimal else None,
            keys=cast("Keys", option("keys", "auto")),
            fails_on_loss=option("failOnDataLoss") != "false",
            min_partitions=int(option("minPartitions", "1")),
            task_memory=int(option("taskMemory", "512")) << 20,
            sample=int(option("samplingRecords", "10000")),
            wait=float(option("wait", "60")),
            starting=option("startingOffsets", "earliest"),
            max_offsets=int(limit) if limit else None,
        )


def _problems(options: Mapping[str, str], use: Use) -> Iterator[str]:
    names = {name.lower() for name in _NAMES}
    for name in options:
        if name not in names and not name.startswith((_KAFKA, *_REGISTRY)):
            yield f"there is no option {name!r}{nearest(name, [*_NAMES, 'kafka.bootstrap.servers'])}"
    if f"{_KAFKA}bootstrap.servers" not in options:
        yield "option kafka.bootstrap.servers is missing"
    yield from _topic_problems(options)
    for name in {"any": (), "batch": _STREAM, "stream": _BATCH}[use]:
        if name.lower() in options:
            yield f"option {name} is for {'spark.read' if use == 'stream' else 'spark.readStream'} only"
    yield from _value_problems(options)
    yield from _contradictions(options)


def _topic_problems(options: Mapping[str, str]) -> Iterator[str]:
    named = [name for name in _TOPICS if options.get(name.lower())]
    if not named:
        yield "give option directory or topic, or for several topics subscribe or subscribePattern"
    elif len(named) > 1 and set(named) != {"directory", "topic"}:
        yield f"options {' and '.join(named)} exclude each other"
    for name in ("directory", "topic", "subscribe"):
        for topic in options.get(name, "").split(",") if name == "subscribe" else [options.get(name, "")]:
            if topic.strip() and not is_topic_name(topic.strip()):
                yield f"option {name}: {topic.strip()!r} is no name of a topic"
    try:
        re.compile(options.get("subscribepattern", ""))
    except re.error as error:
        yield f"option subscribePattern is no regular expression: {error}"


def _value_problems(options: Mapping[str, str]) -> Iterator[str]:
    for name, choices in _CHOICES.items():
        value = options.get(name.lower())
        if value is not None and value not in choices:
            yield f"option {name} must be one of {', '.join(choices)}, not {value!r}{nearest(value, choices)}"
    for name in _COUNTS:
        value = options.get(name.lower(), "1")
        if not value.isascii() or not value.isdigit() or int(value) < 1:
            yield f"option {name} must be a whole number from 1 on, not {value!r}"
    yield from _number_problems(options, ("wait",))


def _contradictions(options: Mapping[str, str]) -> Iterator[str]:
    is_raw = options.get("raw") == "true"
    for name in _TYPED:
        if is_raw and name.lower() in options:
            yield f"option {name} is about typed columns, and raw is true"
    if "connector" in options:
        for name in ("decimal", "valueFormat"):
            if name.lower() in options:
                yield f"option {name}: the connector says how it writes values; give one of the two"
        if "subscribe" in options or "subscribepattern" in options:
            yield "option connector needs directory or topic"
    has_registry = options.get("valueformat", "json") != "json"
    if has_registry and "schema.registry.url" not in options:
        yield f"option valueFormat = {options['valueformat']} needs schema.registry.url"
    if not has_registry and any(name.startswith(_REGISTRY) for name in options):
        yield "options of a schema registry need valueFormat = avro or json-schema"


def _number_problems(options: Mapping[str, str], names: Sequence[str]) -> Iterator[str]:
    for name in names:
        seconds = options.get(name.lower(), "1")
        if not seconds.isascii() or not seconds.replace(".", "", 1).isdigit():
            yield f"option {name} must be a number of seconds, not {seconds!r}"


def write_problems(
    options: Mapping[str, str], names: Sequence[str], seconds: Sequence[str], overwrite: bool
) -> list[str]:
    """Return the problems of options of ``df.write``, of which ``names`` exist and ``seconds`` are numbers."""
    existing = {name.lower() for name in names}
    problems = [
        f"there is no option {name!r} for writing{nearest(name, names)}"
        for name in options
        if name.lower() not in existing
    ]
    if overwrite:
        problems.append('mode overwrite would remove rows: use mode("append")')
    return problems + list(_number_problems({name.lower(): value for name, value in options.items()}, seconds))
