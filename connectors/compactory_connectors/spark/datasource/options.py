"""The options of ``format("compactory")``, checked as a whole. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Literal, get_args

from compactory.directory import Directory, Envelope
from compactory.errors import ConfigError
from compactory.nearest import nearest

__all__ = ["Keys", "ReadOptions", "Use", "write_problems"]

Keys = Literal["auto", "java", "librdkafka", "single", "any"]
"""Which partitions hold a key: the one of a partitioner, a single one that nobody checks, or any."""

Use = Literal["any", "batch", "stream"]
"""Whether options are those of ``spark.read`` or of ``readStream``; Spark does not tell when it asks for a schema."""

_NAMES: Final = (
    "directory",
    "topic",
    "raw",
    "versions",
    "at",
    "connector",
    "decimal",
    "active",
    "envelope",
    "keys",
    "includeHeaders",
    "minPartitions",
    "wait",
    "startingOffsets",
    "maxOffsetsPerTrigger",
)
_KAFKA: Final = "kafka."
_STREAM: Final = ("startingOffsets", "maxOffsetsPerTrigger")
_BATCH: Final = ("versions", "at", "keys", "minPartitions")
_WORDS: Final[Mapping[str, tuple[str, ...]]] = {
    "raw": ("true", "false"),
    "versions": ("true", "false"),
    "includeHeaders": ("true", "false"),
    "keys": get_args(Keys),
    "decimal": ("number", "base64"),
    "envelope": get_args(Envelope),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadOptions:
    """The options of a read. Travels to the executors with Kafka's properties, secrets included: never log it."""

    kafka: Mapping[str, Any] = field(repr=False)
    directory: Directory[Any]
    raw: bool = False
    versions: bool = False
    """Every record is a row, as in a stream."""
    at: str | None = None
    connector: Path | None = None
    base64_decimals: bool | None = None
    """Decimals are texts of Base64, as Connect writes them by default; None: neither option nor connector says."""
    keys: Keys = "auto"
    headers: bool = False
    min_partitions: int = 1
    wait: float = 60.0
    """Seconds to wait for an open transaction."""
    starting: str = "earliest"
    max_offsets: int | None = None
    """Offsets of a micro-batch; None: all that there are."""

    @classmethod
    def read(cls, given: Mapping[str, str], use: Use = "any") -> ReadOptions:
        """The options as Spark hands them over: names in any case. Raises ConfigError with every problem."""
        written = {name.lower(): value for name, value in given.items()}
        problems = list(_problems(written, use))
        if problems:
            raise ConfigError(problems)

        def of(name: str) -> str | None:
            return written.get(name.lower())

        name = of("directory") or of("topic") or ""
        envelope: Any = of("envelope") or "none"
        return cls(
            kafka={key.removeprefix(_KAFKA): value for key, value in written.items() if key.startswith(_KAFKA)},
            directory=Directory(name, topic=of("topic"), active=of("active"), envelope=envelope),
            raw=of("raw") == "true",
            versions=of("versions") == "true",
            at=of("at"),
            connector=Path(path) if (path := of("connector")) is not None else None,
            base64_decimals=None if (decimal := of("decimal")) is None else decimal == "base64",
            keys=of("keys") or "auto",  # type: ignore[arg-type]  # checked
            headers=of("includeHeaders") == "true",
            min_partitions=int(of("minPartitions") or 1),
            wait=float(of("wait") or 60),
            starting=of("startingOffsets") or "earliest",
            max_offsets=int(limit) if (limit := of("maxOffsetsPerTrigger")) is not None else None,
        )


def _problems(written: Mapping[str, str], use: Use) -> Iterator[str]:
    known = {name.lower(): name for name in _NAMES}
    for name in written:
        if name not in known and not name.startswith(_KAFKA):
            yield f"there is no option {name!r}{nearest(name, [*_NAMES, 'kafka.bootstrap.servers'])}"
    if f"{_KAFKA}bootstrap.servers" not in written:
        yield "option kafka.bootstrap.servers is missing"
    if not written.get("directory") and not written.get("topic"):
        yield "give option directory or topic"
    for name in {"any": (), "batch": _STREAM, "stream": _BATCH}[use]:
        if name.lower() in written:
            yield f"option {name} is for {'spark.read' if use == 'stream' else 'spark.readStream'} only"
    yield from _value_problems(written)
    raw = written.get("raw") == "true"
    for name in ("versions", "connector", "decimal", "active", "envelope", "keys"):
        if raw and name.lower() in written:
            yield f"option {name} is about typed columns, and raw is true"
    if not raw and written.get("includeheaders") == "true":
        yield "option includeHeaders needs raw = true"


def _value_problems(written: Mapping[str, str]) -> Iterator[str]:
    for name, words in _WORDS.items():
        value = written.get(name.lower())
        if value is not None and value not in words:
            yield f"option {name} must be one of {', '.join(words)}, not {value!r}{nearest(value, words)}"
    for name in ("minPartitions", "maxOffsetsPerTrigger"):
        value = written.get(name.lower(), "1")
        if not value.isascii() or not value.isdigit() or int(value) < 1:
            yield f"option {name} must be a whole number from 1 on, not {value!r}"
    if "decimal" in written and "connector" in written:
        yield "option decimal: the connector says how it writes decimals; give one of the two"
    yield from _number_problems(written, ("wait",))


def _number_problems(written: Mapping[str, str], names: Sequence[str]) -> Iterator[str]:
    for name in names:
        seconds = written.get(name.lower(), "1")
        if not seconds.isascii() or not seconds.replace(".", "", 1).isdigit():
            yield f"option {name} must be a number of seconds, not {seconds!r}"


def write_problems(
    given: Mapping[str, str], names: Sequence[str], seconds: Sequence[str], overwrite: bool
) -> list[str]:
    """The problems of options of ``df.write``, of which ``names`` exist and ``seconds`` are numbers."""
    known = {name.lower() for name in names}
    problems = [
        f"there is no option {name!r} for writing{nearest(name, names)}" for name in given if name.lower() not in known
    ]
    if overwrite:
        problems.append('mode overwrite would remove rows: use mode("append")')
    return problems + list(_number_problems({name.lower(): value for name, value in given.items()}, seconds))
