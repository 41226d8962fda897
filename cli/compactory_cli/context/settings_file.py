"""Checks the sections of compactory.toml, and gathers all problems with their places."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from compactory.directory import Directory, Index
from compactory.errors import ConfigError
from compactory.kafka.properties import flatten
from compactory.nearest import nearest_or_all
from compactory.options import StoreOptions
from compactory_mastered.rules import WriteRules, rule_problems

if TYPE_CHECKING:
    from compactory.storage.backend import Backend
    from compactory_api.http.access import Client

__all__ = ["DirectorySettings", "SettingsReader"]

T = TypeVar("T")
Section = Mapping[str, Any]

_NUMBER = (int, float)
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
    **_RULES,
}
_INDEX = {"fields": list, "unique": bool, "name": str}
_MASTERS = ("postgres", "kafka")
_HTTP = ("listen", "read_token", "write_token", "admin_token", "advertised", "servers", "servers_secret", "proxies")
_CLIENT = {"token": str, "token_file": str, "scopes": dict}
_SCOPES = ("read", "write", "admin")
_CONSOLE = {"servers": list, "token_file": str, "prefix": str}
_TOPICS = {"partitions": int, "replication": int}
_BACKENDS: dict[str, dict[str, Any]] = {
    "memory": {"save_every": _NUMBER},
    "rocksdb": {"block_cache_bytes": int, "row_cache_bytes": int, "memtable_bytes": int, "compression": str},
}
_STORE: dict[str, Any] = {"backend": str, "path": str, **_BACKENDS["memory"], **_BACKENDS["rocksdb"]}
_STORE_OPTIONS = (
    "missing_topic",
    "unusable_directory",
    "start_stale",
    "stall_timeout",
    "start_timeout",
    "polling_timeout",
    "applying_timeout",
)
SECTIONS: dict[str, dict[str, Any]] = {
    "kafka": {},
    "postgres": {"url": str},
    "store": _STORE | dict.fromkeys(_STORE_OPTIONS, object),
    "http": dict.fromkeys(_HTTP, str) | {"clients": dict},
    "directories": {},
    "topics": _TOPICS,
    "console": _CONSOLE,
}
"""The sections and the kinds of their keys; those without have keys of the user."""

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


class SettingsReader:
    """Reads sections; ``problems`` gathers everything wrong with them.

    ``origins`` says where a value comes from that is not in the file, by section and key.
    """

    def __init__(self, path: Path | None, document: Section, origins: Mapping[tuple[str, str], str]) -> None:
        self._folder = path.parent if path is not None else Path()
        self.prefix = f"{path}: " if path is not None else ""
        self._origins = origins
        self.problems: list[str] = []
        self._document = self.checked("", document, dict.fromkeys(SECTIONS, dict))

    def section(self, name: str) -> dict[str, Any]:
        """Return a section with the keys that are right."""
        written = self._document.get(name, {})
        return self.checked(name, written, SECTIONS[name]) if SECTIONS[name] else dict(written)

    def origin(self, place: str, key: str) -> str:
        """Return where the value of a key comes from, for messages."""
        return self._origins.get((place, key), f"{self.prefix}[{place}] {key}" if place else f"{self.prefix}[{key}]")

    def problem(self, place: str, key: str, text: str) -> None:
        """Keep a problem of a key's value."""
        self.problems.append(f"{self.origin(place, key)}: {text}")

    def attempt(self, place: str, make: Callable[..., T], *arguments: Any, **options: Any) -> T | None:
        """Return the result of a call. If it raises ConfigError, keep the problems and return None."""
        try:
            return make(*arguments, **options)
        except ConfigError as error:
            self.problems += [f"{self.prefix}[{place}] {problem}" for problem in error.problems]
            return None

    def checked(self, place: str, section: Section, kinds: Section, prefix: str = "") -> dict[str, Any]:
        """Return the values of known keys with the right type; keep a problem of each other key."""
        good: dict[str, Any] = {}
        for key, value in section.items():
            if key not in kinds:
                noun = "key" if place else "section"
                self.problem(place, prefix + key, f"unknown {noun}{nearest_or_all(key, kinds)}")
            elif not isinstance(value, kinds[key]):
                self.problem(place, prefix + key, f"must be {_KINDS[kinds[key]]}")
            else:
                good[key] = value
        return good

    def kafka(self) -> dict[str, str]:
        """Return the properties of Kafka, with the dotted keys that TOML nests joined again."""
        properties: dict[str, str] = {}
        for name, value in flatten(self.section("kafka")):
            if isinstance(value, bool):
                properties[name] = str(value).lower()
            elif isinstance(value, str | int | float):
                properties[name] = str(value)
            elif name == "bootstrap.servers" and isinstance(value, list):
                properties[name] = ",".join(map(str, value))
            else:
                self.problem("kafka", name, "must be text, a number, true or false")
        return properties

    def console(self) -> dict[str, Any]:
        """Return the section, with the token in place of the file that holds it."""
        values = self.section("console")
        if not all(isinstance(url, str) for url in values.get("servers", ())):
            self.problem("console", "servers", 'must be a list of URLs: ["http://source:8080"]')
        if not (prefix := values.get("prefix", "")).startswith("/") and prefix:
            self.problem("console", "prefix", "must be a path such as /console")
        if "token_file" in values:
            values["token"] = (self._text("console", "token_file", values.pop("token_file")) or "").strip()
        return values

    def clients(self, section: Section) -> Iterator[Client]:
        """Yield the clients of ``[http.clients]``."""
        from compactory_api.http.access import Client, Scope

        directories = self._document.get("directories", {})
        for name, place, written in self._subsections("http.clients", section):
            values = self.checked(place, written, _CLIENT)
            scopes = values.get("scopes", {})
            for directory, scope in scopes.items():
                if directory != "*" and directory not in directories:
                    self.problem(place, f"scopes.{directory}", f"no directory{nearest_or_all(directory, directories)}")
                if scope not in _SCOPES:
                    self.problem(place, f"scopes.{directory}", f"{scope!r} is not one of {', '.join(_SCOPES)}")
            if not scopes:
                self.problem(place, "scopes", 'is missing: scopes = {DIRECTORY = "read"}')
            if ("token" in values) == ("token_file" in values):
                self.problem(place, "token", "give it, or token_file with the path of a file that holds it")
                continue
            token = values["token"] if "token" in values else self._text(place, "token_file", values["token_file"])
            if token is not None:
                good = {directory: Scope[scope.upper()] for directory, scope in scopes.items() if scope in _SCOPES}
                yield Client(name=name, token=token.rstrip("\r\n"), scopes=good)

    def store(self) -> tuple[Backend | None, dict[str, Any]]:
        """Return the backend, None if the section says nothing of it, and the other options of the store."""
        from compactory import Memory, RocksDB

        values = self.section("store")
        options = {key: values.pop(key) for key in _STORE_OPTIONS if key in values}
        for key, problem in StoreOptions(**options).problems():
            self.problem("store", key, problem)
        backend, folder = values.pop("backend", "memory"), values.pop("path", None)
        if backend not in _BACKENDS:
            self.problem("store", "backend", f"{backend!r} is not a backend{nearest_or_all(backend, _BACKENDS)}")
            return None, options
        for key in values.keys() - _BACKENDS[backend].keys():
            self.problem("store", key, f'is not for the backend "{backend}"; remove it, or set another backend')
            del values[key]
        of_memory = backend == "memory"
        needs_folder = not of_memory or options.get("start_stale") or "save_every" in values
        if needs_folder and not folder and (folder is not None or "path" not in self._document.get("store", {})):
            requirement = f'the backend "{backend}" needs a folder' + (" for that" if of_memory else "")
            self.problem("store", "path", f'{requirement}: path = "/var/lib/compactory"')
        if not folder:
            return None, options
        return self.attempt("store", Memory if of_memory else RocksDB, self._folder / folder, **values), options

    def directories(self) -> dict[str, DirectorySettings]:
        """Return the directories by name."""
        directories: dict[str, DirectorySettings] = {}
        for name, place, written in self._subsections("directories", self.section("directories")):
            values = self.checked(place, written, _DIRECTORY)
            rules = self._rules(place, values)
            indexes = self._indexes(place, values.pop("indexes", []))
            connector = self._folder / values.pop("connector") if "connector" in values else None
            if connector is not None and not connector.is_file():
                text = f"there is no file {connector}; the path is relative to this file's folder"
                self.problem(place, "connector", text)
            directory = self.attempt(place, Directory, name, indexes=indexes, rules=rules, **values)
            if directory is not None:
                directories[name] = DirectorySettings(directory=directory, connector=connector)
        if self.problems:  # else the server checks them: it may have more directories
            self.problems += rule_problems(settings.directory for settings in directories.values())
        return directories

    def topic_defaults(self) -> tuple[int, int]:
        """Return partitions and replicas of new topics; -1: the broker's default."""
        values = self.section("topics")
        for key, value in values.items():
            if value < 1:
                self.problem("topics", key, "must be 1 or more; leave it out for the broker's default")
        return values.get("partitions", -1), values.get("replication", -1)

    def _rules(self, place: str, values: dict[str, Any]) -> WriteRules | None:
        """Remove the rules for writes from a directory's values and return them; None unless mastered in Kafka."""
        rules = {name: values.pop(name) for name in _RULES if name in values}
        master = values.pop("mastered", "postgres")
        if master not in _MASTERS:
            self.problem(place, "mastered", f"{master!r} is not a master{nearest_or_all(master, _MASTERS)}")
        if master != "kafka":
            for name in rules:
                self.problem(place, name, 'is a rule for writes: it needs mastered = "kafka"')
            return None
        if "schema" in rules:
            rules["schema"] = self._schema(place, rules["schema"])
        return self.attempt(place, WriteRules, **rules)

    def _schema(self, place: str, written: str) -> dict[str, Any] | None:
        text = self._text(place, "schema", written)
        if text is None:
            return None
        try:
            schema = json.loads(text)
        except ValueError as error:
            self.problem(place, "schema", f"{written} is not JSON: {error}")
            return None
        if isinstance(schema, dict):
            return schema
        self.problem(place, "schema", f"{written} is not a JSON Schema: it must be an object")
        return None

    def _indexes(self, place: str, written: list[Any]) -> list[Index]:
        indexes: list[Index | None] = []
        for number, item in enumerate(written):
            where = f"indexes[{number}]"
            if not isinstance(item, dict):
                self.problem(place, where, 'must be a table such as {fields = ["acquirerId"], unique = true}')
                continue
            values = self.checked(place, item, _INDEX, prefix=f"{where}.")
            if fields := values.pop("fields", None):
                indexes.append(self.attempt(place, Index, *fields, **values))
            else:
                self.problem(place, f"{where}.fields", "must list the names of one or more fields")
        return [index for index in indexes if index is not None]

    def _subsections(self, place: str, section: Section) -> Iterator[tuple[str, str, dict[str, Any]]]:
        """Yield name, place and contents of each subsection; keep a problem of a value that is not a section."""
        for name, written in section.items():
            if isinstance(written, dict):
                yield name, f"{place}.{name}", written
            else:
                self.problem(place, name, f"must be a section: [{place}.{name}]")

    def _text(self, place: str, key: str, written: str) -> str | None:
        """Return the text of a file that a key names, relative to compactory.toml."""
        path = self._folder / written
        try:
            return path.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            reason = error.strerror if isinstance(error, OSError) else "is not UTF-8 text"
            self.problem(place, key, f"{path} can't be read: {reason}; relative to this file's folder")
            return None
