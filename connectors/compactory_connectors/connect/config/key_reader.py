"""From the keys of a configuration, as text, to their values: all problems at once. For connectors and for sinks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from compactory.kafka.errors import property_problems
from compactory_connectors.postgres.jdbc_url import Connection, parse_url

from ..converters import Converter, read_converter
from ..setting import Setting, Status, find_setting, nearest, rejection, settings_of
from ..transforms import TransformSpec, read_transforms
from .placeholder import Placeholders, has_placeholder

__all__ = ["KeyReader"]


class KeyReader:
    """A reader of the keys that connectors and sinks have in common. It collects all problems."""

    def __init__(self, settings: Sequence[Setting], written: Mapping[str, str], placeholders: Placeholders) -> None:
        self._written = written
        self._placeholders = placeholders
        self._problems: list[str] = []
        self._notes: list[str] = []
        self._resolved: dict[str, str] = {}
        self._failed: set[str] = set()
        for key, text in written.items():
            value = text if key.startswith("config.providers") else placeholders.resolve(key, text)
            if value is None:
                self._failed.add(key)
            else:
                self._resolved[key] = value
        self._problems += dict.fromkeys(placeholders.problems)
        self._values = self._parsed(settings)

    def _parsed(self, settings: Sequence[Setting]) -> dict[str, Any]:
        """Return the value of every known key: its default where it is not written, or refused."""
        exact = [item.name for item in settings if not item.name.endswith(".*")]
        for key in self._written:
            setting = find_setting(key, settings)
            if setting is None:
                self._problems.append(f"{key}: unknown key{nearest(key, exact)}")
            elif setting.status is Status.REFUSED:
                self._problems.append(f"{key}: {setting.note}")
            elif setting.status is Status.MOOT:
                self._notes.append(f"{key}: has no effect: {setting.note}")
        values: dict[str, Any] = {}
        for setting in settings:
            if setting.status is Status.REFUSED or setting.name.endswith(".*"):
                continue
            values[setting.name] = None if setting.default is None else setting.parse(setting.default)
            if setting.name in self._resolved:
                try:
                    values[setting.name] = setting.parse(self._resolved[setting.name])
                except ValueError as error:
                    shown = self._shown(setting.name, setting.secret)
                    self._problems.append(f"{setting.name}: {rejection(error, shown)}")
        return values

    def _shown(self, key: str, secret: bool) -> str:
        """Return the value as it was written; the value of a placeholder is never shown."""
        if secret or not self._written[key]:
            return ""
        written = self._written[key]
        return f", not what {written} stands for" if has_placeholder(written) else f", not {written!r}"

    def _refused_keys(self) -> set[str]:
        """Return the keys that have a problem."""
        return {problem.partition(":")[0] for problem in self._problems}

    def _missing(self, key: str, meaning: str) -> None:
        if key not in self._failed:
            self._problems.append(f"{key}: missing; {meaning}")

    def _below(self, prefix: str) -> dict[str, str]:
        return {key.removeprefix(prefix): value for key, value in self._resolved.items() if key.startswith(prefix)}

    def _has_text(self, key: str) -> bool:
        """Return True if a key was written with a text that is not empty."""
        return bool(self._values[key]) or key in self._failed

    def _fields(self, kind: Any) -> dict[str, Any]:
        """Return the values of the fields of a dataclass that keys fill."""
        return {name: self._values[item.name] for name, item in settings_of(kind).items()}

    def _connection(self) -> Connection | None:
        url = self._values["connection.url"]
        if url is None:
            if "connection.url" not in self._written:
                self._missing("connection.url", "give the JDBC URL of the database")
            return None
        try:
            return parse_url(url, self._values["connection.user"], self._values["connection.password"])
        except ValueError as error:
            self._problems += [f"connection.url: {line}" for line in str(error).splitlines()]
            return None

    def _converter(self, key: str) -> Converter | None:
        options = {name: value for name, value in self._below(key + ".").items() if name != "plugin.version"}
        converter, problems = read_converter(self._values[key], options)
        self._problems += [f"{key}{problem}" for problem in problems]
        return converter

    def _transforms(self) -> tuple[TransformSpec, ...]:
        transforms, problems = read_transforms(
            self._values["transforms"],
            self._below("transforms."),
            predicates=self._values["predicates"],
            predicate_options=self._below("predicates."),
            function=self._values.get("compactory.transform"),
        )
        self._problems += problems
        return transforms

    def _check_client(self, prefix: str, properties: Mapping[str, str]) -> None:
        """Note the problems of a Kafka client's properties, whose keys begin with ``prefix``."""
        self._problems += [f"{prefix}{name}: {problem}" for name, problem in property_problems(properties)]
