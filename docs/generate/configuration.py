"""compactory.toml, environment variables and the store's own options."""

from __future__ import annotations

import inspect
from typing import Any

from compactory import Directory, DirectoryWriter, GlobalStore, Index, RocksDB, StoreOptions
from compactory_cli.context import configuration, environment, settings_file
from compactory_mastered import WriteRules

from .markdown import cell, code, described, page, table

__all__ = ["page_text"]

_INTRO = """\
Flags override environment variables, and these override `compactory.toml`. The file is that of `--config`, else of
`COMPACTORY_CONFIG`, else `./compactory.toml` if it exists. Everything is checked when a command starts; all problems
are printed together, each with its place and the nearest valid name (exit code 2)."""

_KAFKA = """\
`[kafka]` holds client properties by their librdkafka names; dotted names may be written as TOML nests them. A few are
the store's own and refused with another value: """

_EXAMPLE = """\
```toml
[kafka]
bootstrap.servers = "localhost:9092"

[postgres]
url = "postgresql://user@localhost/reference"

[http]
listen = "127.0.0.1:8080"

[directories.terminal_acquirer]
key = "terminalId"
active = "isActive"
indexes = [{fields = ["acquirerId"]}, {fields = ["terminalId"], unique = true}]
```"""

_SECTION_MEANINGS = {
    "postgres": {
        "url": "URL or DSN of the database of `compactory sql`, `outbox`, `jobs` and `sink status`; `spark load` "
        "writes to it in place of the connector's"
    },
    "store": {
        "backend": "where `compactory serve` keeps entries: `memory` or `rocksdb`",
        "path": "folder of `rocksdb` (used by nothing else), or of saved files of `memory`; relative to this file",
        "save_every": "seconds between two files of a topic that `memory` saves; 300",
    },
    "http": {
        "listen": "HOST:PORT that `compactory serve` listens on",
        "read_token": "bearer token that lets one read",
        "write_token": "bearer token that also writes directories mastered in Kafka",
        "advertised": "base URL under which other servers reach this one, to forward writes; default: where it listens",
        "servers": "where the servers that forward writes to each other may be: hosts, `.domains`, addresses, "
        "networks, separated by commas",
        "servers_secret": "text of 32 characters or more that only these servers have; else none forwards writes",
        "proxies": "addresses and networks of proxies, as in `10.0.0.7, 192.168.0.0/16`: only their `X-Forwarded-For`"
        " is believed, for the audit trail; default: none",
        "admin_token": "bearer token that also shows bytes of bad records, retries and skips them, commands sources",
    },
    "clients": {
        "token": "bearer token of this client",
        "token_file": "file with the token; relative to this file",
        "scopes": "directory of this file → `read`, `write` or `admin`; `*`: all other directories",
    },
    "topics": {
        "partitions": "partitions of topics that `compactory topic create` makes; default: the broker's",
        "replication": "replicas of each of their partitions; default: the broker's",
    },
    "console": {
        "servers": "a list of base URLs: the processes that `compactory console` shows",
        "token_file": "file with the token with which the console asks them; default: the admin token of `[http]`",
        "prefix": "path before all paths of the console, for a proxy",
    },
    "directories": {
        "connector": "connector JSON that names the table and database; relative to this file",
        "mastered": "`kafka`: the server takes writes, and the keys from `schema` on are their rules; else `postgres`",
        "schema": "file with the JSON Schema of values; relative to this file",
        "indexes": "a list of `{fields = […], unique = true|false, name = …}`, see Index below",
    },
}

_NAMED = {
    "clients": "[http.clients.NAME]",
    "directories": "[directories.NAME]",
}

_WITHIN = {"http": ("clients",)}  # section → those that stand in it

_VARIABLES = {
    "CONFIG": "path of compactory.toml",
    "KAFKA": "bootstrap servers",
    "POSTGRES": "URL or DSN of the database",
    "LISTEN": "HOST:PORT of the server, or of a worker's probes",
    "URL": "base URL of a running server; `get`, `watch`, `directories` and `errors` ask it instead of Kafka, "
    "`put` and `delete` write through it, `source` commands go to it",
    "LOG_LEVEL": "debug, info, warning or error",
    "LOG_FORMAT": "console or json; default: console on a terminal, else json",
    "HTTP_READ_TOKEN": "bearer token that lets one read",
    "HTTP_WRITE_TOKEN": "bearer token that also writes directories mastered in Kafka",
    "HTTP_ADVERTISED": "base URL under which other servers reach this one, to forward writes",
    "HTTP_SERVERS": "where the servers that forward writes to each other may be, separated by commas",
    "HTTP_SERVERS_SECRET": "text of 32 characters or more that only these servers have",
    "HTTP_PROXIES": "addresses and networks of proxies whose `X-Forwarded-For` is believed, separated by commas",
    "HTTP_ADMIN_TOKEN": "bearer token that also shows bytes of bad records, retries and skips them, commands sources",
}


def page_text() -> str:
    """The page."""
    from compactory.kafka.properties import OWNED

    owned = ", ".join(f"`{name}={value}`" for name, value in OWNED.items())
    return page(
        "Configuration",
        "`cli/compactory_cli` and the docstrings of `store/compactory`",
        _INTRO,
        "## compactory.toml",
        _EXAMPLE,
        f"{_KAFKA}{owned}.",
        table(["section", "key", "meaning"], _file_rows()),
        f"`listen` is `{configuration._DEFAULT_LISTEN}` unless it is given.",
        "## Environment variables",
        "With the suffix `_FILE` each variable names a file with the value. An empty variable counts as not set.",
        table(["variable", "meaning"], _variable_rows()),
        "## GlobalStore",
        _options(GlobalStore, StoreOptions),
        "`AsyncGlobalStore` takes the same.",
        "## RocksDB",
        _options(RocksDB),
        "## DirectoryWriter",
        _options(DirectoryWriter),
        "## Directory",
        _options(Directory),
        "## Index",
        _text(Index),
    )


def _text(kind: type) -> str:
    """The docstring as running text."""
    return inspect.cleandoc(kind.__doc__ or "").replace("``", "`")


def _file_rows() -> list[list[str]]:
    directory = dict(described(Directory.__doc__)) | dict(described(WriteRules.__doc__))
    sections: dict[str, tuple[Any, dict[str, str]]] = {
        "postgres": (("url",), _SECTION_MEANINGS["postgres"]),
        "store": ([*settings_file._STORE, *settings_file._STORE_OPTIONS], _store_meanings()),
        "http": (settings_file._HTTP, _SECTION_MEANINGS["http"]),
        "clients": (settings_file._CLIENT, _SECTION_MEANINGS["clients"]),
        "directories": (settings_file._DIRECTORY, directory | _SECTION_MEANINGS["directories"]),
        "topics": (settings_file._TOPICS, _SECTION_MEANINGS["topics"]),
        "console": (settings_file._CONSOLE, _SECTION_MEANINGS["console"]),
    }
    rows = [["`[kafka]`", "any client property", "see above"]]
    for section in [part for name in settings_file.SECTIONS for part in (name, *_WITHIN.get(name, ()))]:
        if section == "kafka":
            continue
        keys, meanings = sections[section]
        name = code(_NAMED.get(section, f"[{section}]"))
        rows += [[name, code(key), cell(meanings[key])] for key in keys]
    return rows


def _store_meanings() -> dict[str, str]:
    return dict(described(StoreOptions.__doc__)) | dict(described(RocksDB.__doc__)) | _SECTION_MEANINGS["store"]


def _variable_rows() -> list[list[str]]:
    rows = [[code(name), cell(_VARIABLES[name.removeprefix("COMPACTORY_")])] for name in environment._NAMES]
    return [*rows, [code(f"{environment._KAFKA}<PROPERTY>"), "a client property; dots become `_`"]]


def _options(*kinds: type) -> str:
    rows = []
    for kind in kinds:
        meanings = dict(described(kind.__doc__))
        for name, parameter in inspect.signature(kind).parameters.items():
            if parameter.kind is inspect.Parameter.VAR_KEYWORD:
                continue
            default = parameter.default
            is_required = default is inspect.Parameter.empty
            shown = "required" if is_required else code(getattr(default, "__name__", repr(default)))
            rows.append([code(name), cell(meanings[name]), shown])
    return table(["parameter", "meaning", "default"], rows)
