"""The configuration of a Kafka Connect JDBC sink connector, read, checked and frozen: all problems at once."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from compactory.errors import ConfigError
from compactory.kafka.kafka_errors import property_problems
from compactory_connectors.database.jdbc_url import Connection, parse_url
from compactory_connectors.source.config.files import read_file
from compactory_connectors.source.config.placeholder import Placeholders
from compactory_connectors.source.record.transforms import TransformSpec, read_transforms
from compactory_connectors.source.setting import Setting, Status, nearest, rejected

from .decoders import read_decoder
from .decoding import Decoder
from .sink_keys import SETTINGS, find

__all__ = ["SinkConfig", "load_sink"]

_PARTS = ("key.converter.", "value.converter.", "transforms.", "predicates.", "consumer.override.", "config.providers")


@dataclass(frozen=True, slots=True, kw_only=True)
class SinkConfig:
    """One sink. Immutable; made by `load_sink`."""

    name: str
    connection: Connection
    topics: tuple[str, ...]
    """Names, or a pattern that begins with ``^``."""
    table_format: str
    insert_mode: str
    pk_mode: str
    pk_fields: tuple[str, ...]
    delete: bool
    whitelist: frozenset[str]
    auto_create: bool
    auto_evolve: bool
    batch: int
    key: Decoder
    value: Decoder
    transforms: tuple[TransformSpec, ...]
    tolerant: bool
    dead_letters: str | None
    dead_letter_headers: bool
    start: str
    parallel: int
    consumer: Mapping[str, str] = field(repr=False)
    notes: tuple[str, ...] = ()
    """Keys that were given and have no effect here, each with the reason."""


def load_sink(path: Path, providers: Mapping[str, Path] | None = None) -> SinkConfig:
    """The sink of a JSON or .properties file. Raises ConfigError with every problem, each with the file's name."""
    written = read_file(path)
    if len(written) != 1:
        raise ConfigError(f"{path}: holds {len(written)} sinks, and one is expected")
    try:
        return _Reader(written[0], providers or {}).sink(path.stem)
    except ConfigError as error:
        raise ConfigError(f"{path}: {problem}" for problem in error.problems) from None


class _Reader:
    def __init__(self, written: Mapping[str, str], providers: Mapping[str, Path]) -> None:
        self._written = written
        self.problems: list[str] = []
        self.notes: list[str] = []
        placeholders = Placeholders(providers, os.environ, written)
        self._resolved: dict[str, str] = {}
        for key, text in written.items():
            value = placeholders.resolve(key, text)
            if value is not None:
                self._resolved[key] = value
        self.problems += placeholders.problems
        self._values = self._parsed()

    def _parsed(self) -> dict[str, Any]:
        known: dict[str, Setting] = {item.name: item for item in SETTINGS}
        values: dict[str, Any] = {}
        for name, item in known.items():
            values[name] = None if item.default is None else item.parse(item.default)
        for key in self._written:
            setting = find(key)
            if setting is None:
                self.problems.append(f"{key}: unknown key{nearest(key, known)}")
            elif setting.status is Status.REFUSED:
                self.problems.append(f"{key}: {setting.note}")
            elif setting.status is Status.MOOT:
                self.notes.append(f"{key}: has no effect: {setting.note}")
            elif key in self._resolved and not setting.name.endswith("*"):
                try:
                    values[key] = setting.parse(self._resolved[key])
                except ValueError as error:
                    shown = "" if setting.secret else f", not {self._written[key]!r}"
                    self.problems.append(f"{key}: {rejected(error, shown)}")
        return values

    def _below(self, prefix: str) -> dict[str, str]:
        return {key.removeprefix(prefix): value for key, value in self._resolved.items() if key.startswith(prefix)}

    def sink(self, default_name: str) -> SinkConfig:
        """The sink. Raises ConfigError."""
        values = self._values
        connection = self._connection()
        topics = self._topics()
        self._check_modes()
        key, value = self._decoder("key.converter"), self._decoder("value.converter")
        transforms = self._transforms()
        consumer = self._below("consumer.override.")
        found = property_problems(consumer)
        self.problems += [f"consumer.override.{name}: {problem}" for name, problem in found]
        if self.problems:
            raise ConfigError(self.problems)
        assert connection is not None
        assert key is not None
        assert value is not None
        return SinkConfig(
            name=values["name"] or default_name,
            connection=connection,
            topics=topics,
            table_format=values["table.name.format"],
            insert_mode=values["insert.mode"],
            pk_mode=values["pk.mode"],
            pk_fields=values["pk.fields"],
            delete=values["delete.enabled"],
            whitelist=frozenset(values["fields.whitelist"]),
            auto_create=values["auto.create"],
            auto_evolve=values["auto.evolve"],
            batch=values["batch.size"],
            key=key,
            value=value,
            transforms=transforms,
            tolerant=values["errors.tolerance"] == "all",
            dead_letters=values["errors.deadletterqueue.topic.name"] or None,
            dead_letter_headers=values["errors.deadletterqueue.context.headers.enable"],
            start=values["compactory.start"],
            parallel=values["compactory.parallel"],
            consumer=consumer,
            notes=tuple(self.notes),
        )

    def _connection(self) -> Connection | None:
        url = self._values["connection.url"]
        if url is None:
            self._missing("connection.url", "give the JDBC URL of the database")
            return None
        try:
            return parse_url(url, self._values["connection.user"], self._values["connection.password"])
        except ValueError as error:
            self.problems += [f"connection.url: {line}" for line in str(error).splitlines()]
            return None

    def _missing(self, key: str, remedy: str) -> None:
        if not any(problem.startswith(f"{key}:") for problem in self.problems):
            self.problems.append(f"{key}: missing; {remedy}")

    def _topics(self) -> tuple[str, ...]:
        topics: tuple[str, ...] = self._values["topics"]
        pattern: str = self._values["topics.regex"]
        if topics and pattern:
            self.problems.append("topics.regex: is given beside topics; drop one of them")
        if not topics and not pattern:
            self._missing("topics", "name the topics, separated by commas")
        if pattern:
            try:
                re.compile(pattern)
            except re.error as error:
                self.problems.append(f"topics.regex: is no regular expression: {error}")
            return (f"^(?:{pattern.removeprefix('^').removesuffix('$')})$",)
        return topics

    def _check_modes(self) -> None:
        mode, pk, fields = self._values["insert.mode"], self._values["pk.mode"], self._values["pk.fields"]
        if pk == "none" and mode != "insert":
            self.problems.append(
                f"pk.mode: insert.mode={mode} needs a primary key; set record_key, record_value or kafka"
            )
        if pk == "kafka" and fields and len(fields) != 3:
            self.problems.append("pk.fields: pk.mode=kafka takes three names: of topic, partition and offset")
        if self._values["compactory.parallel"] > 1 and pk == "record_value" and mode != "insert":
            self.problems.append(
                "compactory.parallel: needs pk.mode=record_key or kafka: parts go by the record's key, and rows of one"
                " primary key of values could change their order"
            )
        if self._values["delete.enabled"] and pk != "record_key":
            self.problems.append("delete.enabled: needs pk.mode=record_key, as a tombstone has nothing but its key")
        if self._values["errors.deadletterqueue.topic.name"] and self._values["errors.tolerance"] != "all":
            self.problems.append("errors.deadletterqueue.topic.name: has an effect only with errors.tolerance=all")
        if "${topic}" not in self._values["table.name.format"] and not self._values["table.name.format"].strip():
            self.problems.append("table.name.format: must not be empty")

    def _decoder(self, key: str) -> Decoder | None:
        options = self._below(key + ".")
        options.pop("plugin.version", None)
        decoder, problems = read_decoder(self._values[key], options)
        self.problems += [f"{key}{problem}" for problem in problems]
        return decoder

    def _transforms(self) -> tuple[TransformSpec, ...]:
        transforms, problems = read_transforms(
            self._values["transforms"],
            self._below("transforms."),
            predicates=self._values["predicates"],
            predicate_options=self._below("predicates."),
        )
        self.problems += problems
        return transforms
