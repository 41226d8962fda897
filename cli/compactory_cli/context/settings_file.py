"""Reads and checks compactory.toml, and reports all problems with their places at once."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from compactory.directory import Directory, Index
from compactory.errors import ConfigError
from compactory.kafka.properties import flatten
from compactory.nearest import nearest_or_all
from compactory.options import StoreOptions
from compactory_mastered.rules import WriteRules, rule_problems

if TYPE_CHECKING:
    from compactory_api.http.access import Client
    from compactory_connectors.outbox.rules import TopicRules

__all__ = ["DirectorySettings", "SettingsFile", "StoreSettings", "read_settings"]

_SECTIONS = ("kafka", "postgres", "store", "http", "directories", "outbox", "topics", "console")
_NUMBER = (int, float)
_DIRECTORY: dict[str, Any] = {
    "topic": str,
    "key": str,
    "active": str,
    "indexes": list,
    "max_age": _NUMBER,
    "on_stale": str,
    "keep_changes": bool,
    "connector": str,
    "mastered": str,
}
_RULES: dict[str, Any] = {
    "schema": str,
    "key_pattern": str,
    "key_from": list,
    "unique": list,
    "references": dict,
    "internal": list,
    "outcomes": list,
    "remember": _NUMBER,
    "remember_at_most": int,
    "remember_bytes": int,
    "min_insync_replicas": int,
}
_DIRECTORY |= _RULES
_MASTERS = ("postgres", "kafka")
_HTTP = ("listen", "read_token", "write_token", "admin_token", "advertised", "servers", "servers_secret", "proxies")
_CLIENT = {"token": str, "token_file": str, "scopes": dict}
_SCOPES = ("read", "write", "admin")
_CONSOLE = {"servers": list, "token_file": str, "prefix": str}
_TOPICS = {"partitions": int, "replication": int}
_INDEX = {"fields": list, "unique": bool, "name": str}
_ROCKSDB: dict[str, Any] = {
    "block_cache_bytes": int,
    "row_cache_bytes": int,
    "memtable_bytes": int,
    "compression": str,
}
_BACKENDS: dict[str, dict[str, Any]] = {
    "memory": {"save_every": _NUMBER},
    "rocksdb": _ROCKSDB,
}
_STORE: dict[str, Any] = {"backend": str, "path": str}
_STORE |= {key: kind for keys in _BACKENDS.values() for key, kind in keys.items()}
_STORE_OPTIONS = (
    "missing_topic",
    "unusable_directory",
    "start_stale",
    "stall_timeout",
    "start_timeout",
    "polling_timeout",
    "applying_timeout",
)
_KINDS: dict[Any, str] = {
    str: "text",
    bool: "true or false",
    int: "a whole number",
    _NUMBER: "a number",
    list: "a list",
    dict: "a section",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class DirectorySettings:
    """A section ``[directories.NAME]``; ``connector`` is the file of its connector, for verify and load."""

    directory: Directory[dict[str, Any]]
    connector: Path | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreSettings:
    """A section ``[store]`` that keeps entries on disk: backend, folder, arguments of `RocksDB` or `Memory`."""

    backend: str
    path: Path | None
    settings: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class SettingsFile:
    """The contents of the file; ``problems`` lists everything wrong with it."""

    path: Path | None = None
    kafka: Mapping[str, str] = field(default_factory=dict, repr=False)
    postgres: str | None = field(default=None, repr=False)
    store: StoreSettings | None = None
    store_options: Mapping[str, Any] = field(default_factory=dict)
    http: Mapping[str, str] = field(default_factory=dict, repr=False)
    clients: tuple[Client, ...] = ()
    directories: Mapping[str, DirectorySettings] = field(default_factory=dict)
    console: Mapping[str, Any] = field(default_factory=dict, repr=False)
    outbox_topics: Mapping[str, TopicRules] = field(default_factory=dict)
    topic_defaults: Mapping[str, int] = field(default_factory=dict)
    problems: tuple[str, ...] = ()


def read_settings(path: Path) -> SettingsFile:
    """Read and check the file. A file that can't be read is a problem too."""
    try:
        with path.open("rb") as file:
            document = tomllib.load(file)
    except OSError as error:
        return SettingsFile(path=path, problems=(f"{path}: can't be read: {error.strerror}",))
    except tomllib.TOMLDecodeError as error:
        return SettingsFile(path=path, problems=(f"{path}: not valid TOML: {error}",))
    except UnicodeDecodeError as error:
        return SettingsFile(path=path, problems=(f"{path}: is not UTF-8 text (byte {error.start})",))
    return _Reader(path).settings(document)


class _Reader:
    """Reads a document and gathers its problems instead of stopping at the first."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._problems: list[str] = []

    def settings(self, document: Mapping[str, Any]) -> SettingsFile:
        sections = self._checked("", document, dict.fromkeys(_SECTIONS, dict))
        postgres = self._checked("postgres", sections.get("postgres", {}), {"url": str})
        http = self._checked("http", sections.get("http", {}), dict.fromkeys(_HTTP, str) | {"clients": dict})
        store = self._checked("store", sections.get("store", {}), _STORE | dict.fromkeys(_STORE_OPTIONS, object))
        options = {key: store.pop(key) for key in _STORE_OPTIONS if key in store}
        return SettingsFile(
            path=self._path,
            kafka=self._kafka(sections.get("kafka", {})),
            postgres=postgres.get("url"),
            store=self._store(sections.get("store", {}), store, options),
            store_options=options,
            clients=tuple(self._clients(http.pop("clients", {}), sections.get("directories", {}))),
            http=http,
            directories=self._directories(sections.get("directories", {})),
            console=self._console(sections.get("console", {})),
            outbox_topics=self._outbox(sections.get("outbox", {})),
            topic_defaults=self._topics(sections.get("topics", {})),
            problems=tuple(self._problems),
        )

    def _kafka(self, section: Mapping[str, Any]) -> dict[str, str]:
        """Return the properties of Kafka, with the dotted keys that TOML nests joined again."""
        properties: dict[str, str] = {}
        for name, value in flatten(section):
            if isinstance(value, bool):
                properties[name] = str(value).lower()
            elif isinstance(value, str | int | float):
                properties[name] = str(value)
            elif name == "bootstrap.servers" and isinstance(value, list):
                properties[name] = ",".join(map(str, value))
            else:
                self._problem("kafka", name, "must be text, a number, true or false")
        return properties

    def _console(self, section: Mapping[str, Any]) -> dict[str, Any]:
        """Return the section, with the token in place of the file that holds it."""
        values = self._checked("console", section, _CONSOLE)
        if not all(isinstance(url, str) for url in values.get("servers", ())):
            self._problem("console", "servers", 'must be a list of URLs: ["http://source:8080"]')
        if not (prefix := values.get("prefix", "")).startswith("/") and prefix:
            self._problem("console", "prefix", "must be a path such as /console")
        if "token_file" in values:
            values["token"] = (self._text("console", "token_file", values.pop("token_file")) or "").strip()
        return values

    def _clients(self, section: Mapping[str, Any], directories: Mapping[str, Any]) -> Iterator[Client]:
        from compactory_api.http.access import Client, Scope

        for name, place, written in self._sections("http.clients", section):
            values = self._checked(place, written, _CLIENT)
            scopes = values.get("scopes", {})
            for directory, scope in scopes.items():
                if directory != "*" and directory not in directories:
                    self._problem(place, f"scopes.{directory}", f"no directory{nearest_or_all(directory, directories)}")
                if scope not in _SCOPES:
                    self._problem(place, f"scopes.{directory}", f"{scope!r} is not one of {', '.join(_SCOPES)}")
            if not scopes:
                self._problem(place, "scopes", 'is missing: scopes = {DIRECTORY = "read"}')
            token = self._client_token(place, values)
            if token is not None:
                good = {directory: Scope[scope.upper()] for directory, scope in scopes.items() if scope in _SCOPES}
                yield Client(name=name, token=token, scopes=good)

    def _client_token(self, place: str, values: Mapping[str, Any]) -> str | None:
        if ("token" in values) == ("token_file" in values):
            self._problem(place, "token", "give it, or token_file with the path of a file that holds it")
            return None
        if "token" in values:
            return str(values["token"])
        text = self._text(place, "token_file", values["token_file"])
        return None if text is None else text.rstrip("\r\n")

    def _store(
        self, written: Mapping[str, Any], settings: dict[str, Any], options: Mapping[str, Any]
    ) -> StoreSettings | None:
        """Return the backend's settings; ``settings`` and ``options`` are the well-typed parts of ``written``."""
        for key, problem in StoreOptions(**options).problems():
            self._problem("store", key, problem)
        backend = settings.pop("backend", "memory")
        if backend not in _BACKENDS:
            self._problem("store", "backend", f"{backend!r} is not a backend{nearest_or_all(backend, _BACKENDS)}")
            return None
        of_memory, folder = backend == "memory", settings.pop("path", None)
        for key in settings:
            if key not in _BACKENDS[backend]:
                self._problem("store", key, f'is not for the backend "{backend}"; remove it, or set another backend')
        needs_folder = not of_memory or options.get("start_stale") or "save_every" in settings
        if needs_folder and not folder and ("path" not in written or folder is not None):
            requirement = f'the backend "{backend}" needs a folder' + (" for that" if of_memory else "")
            self._problem("store", "path", f'{requirement}: path = "/var/lib/compactory"')
        if not folder and not settings:
            return None
        path = self._path.parent / folder if folder else None
        return StoreSettings(backend=backend, path=path, settings=settings)

    def _directories(self, section: Mapping[str, Any]) -> dict[str, DirectorySettings]:
        directories: dict[str, DirectorySettings] = {}
        for name, place, written in self._sections("directories", section):
            values = self._checked(place, written, _DIRECTORY)
            rules = self._rules(place, values)
            indexes = self._indexes(place, values.pop("indexes", []))
            connector = self._connector(place, values.pop("connector", None))
            try:
                directory = Directory(name, indexes=indexes, rules=rules, **values)
            except ConfigError as error:
                self._problems += [f"{self._path}: [{place}] {problem}" for problem in error.problems]
                continue
            directories[name] = DirectorySettings(directory=directory, connector=connector)
        if self._problems:  # else the server checks them: it may have more directories
            self._problems += rule_problems(settings.directory for settings in directories.values())
        return directories

    def _rules(self, place: str, values: dict[str, Any]) -> WriteRules | None:
        """Remove the rules for writes from a directory's values and return them; None unless mastered in Kafka."""
        rules = {name: values.pop(name) for name in _RULES if name in values}
        master = values.pop("mastered", "postgres")
        if master not in _MASTERS:
            self._problem(place, "mastered", f"{master!r} is not a master{nearest_or_all(master, _MASTERS)}")
        if master != "kafka":
            for name in rules:
                self._problem(place, name, 'is a rule for writes: it needs mastered = "kafka"')
            return None
        if "schema" in rules:
            rules["schema"] = self._schema(place, rules["schema"])
        try:
            return WriteRules(**rules)
        except ConfigError as error:
            self._problems += [f"{self._path}: [{place}] {problem}" for problem in error.problems]
        return None

    def _schema(self, place: str, written: str) -> dict[str, Any] | None:
        text = self._text(place, "schema", written)
        if text is None:
            return None
        try:
            schema = json.loads(text)
        except ValueError as error:
            self._problem(place, "schema", f"{written} is not JSON: {error}")
            return None
        if isinstance(schema, dict):
            return schema
        self._problem(place, "schema", f"{written} is not a JSON Schema: it must be an object")
        return None

    def _text(self, place: str, key: str, written: str) -> str | None:
        """Return the text of a file that a key names, relative to compactory.toml."""
        path = self._path.parent / written
        try:
            return path.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            reason = error.strerror if isinstance(error, OSError) else "is not UTF-8 text"
            self._problem(place, key, f"{path} can't be read: {reason}; relative to this file's folder")
            return None

    def _outbox(self, section: Mapping[str, Any]) -> dict[str, TopicRules]:
        if not section:
            return {}
        from compactory_connectors.outbox.rules import read_rules

        topics = self._checked("outbox", section, {"topics": dict}).get("topics", {})
        rules, problems = read_rules(topics)
        for key, text in problems:
            self._problem("outbox.topics", key, text)
        return rules

    def _topics(self, section: Mapping[str, Any]) -> dict[str, int]:
        values = self._checked("topics", section, _TOPICS)
        for key, value in values.items():
            if value < 1:
                self._problem("topics", key, "must be 1 or more; leave it out for the broker's default")
        return values

    def _indexes(self, place: str, written: list[Any]) -> list[Index]:
        indexes: list[Index] = []
        for number, item in enumerate(written):
            where = f"indexes[{number}]"
            if not isinstance(item, dict):
                self._problem(place, where, 'must be a table such as {fields = ["acquirerId"], unique = true}')
                continue
            values = self._checked(place, item, _INDEX, prefix=f"{where}.")
            fields = values.pop("fields", None)
            if not isinstance(fields, list) or not fields or not all(isinstance(name, str) for name in fields):
                self._problem(place, f"{where}.fields", "must list the names of one or more fields")
                continue
            try:
                indexes.append(Index(*fields, **values))
            except ConfigError as error:
                self._problems += [f"{self._path}: [{place}] {problem}" for problem in error.problems]
        return indexes

    def _connector(self, place: str, written: str | None) -> Path | None:
        if written is None:
            return None
        path = self._path.parent / written
        if not path.is_file():
            self._problem(place, "connector", f"there is no file {path}; the path is relative to this file's folder")
        return path

    def _sections(self, place: str, section: Mapping[str, Any]) -> Iterator[tuple[str, str, dict[str, Any]]]:
        """Yield name, place and contents of each subsection; add a problem for a value that is not a section."""
        for name, written in section.items():
            if isinstance(written, dict):
                yield name, f"{place}.{name}", written
            else:
                self._problem(place, name, f"must be a section: [{place}.{name}]")

    def _checked(
        self, place: str, section: Mapping[str, Any], kinds: Mapping[str, Any], prefix: str = ""
    ) -> dict[str, Any]:
        """Return the values of known keys with the right type; add a problem for each other key."""
        good: dict[str, Any] = {}
        for key, value in section.items():
            if key not in kinds:
                noun = "key" if place else "section"
                self._problem(place, prefix + key, f"unknown {noun}{nearest_or_all(key, kinds)}")
            elif not isinstance(value, kinds[key]):
                self._problem(place, prefix + key, f"must be {_KINDS[kinds[key]]}")
            else:
                good[key] = value
        return good

    def _problem(self, place: str, key: str, text: str) -> None:
        where = f"[{place}] {key}" if place else f"[{key}]"
        self._problems.append(f"{self._path}: {where}: {text}")
