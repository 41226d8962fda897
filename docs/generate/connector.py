"""The keys of a connector JSON, from the table that the parser itself uses."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from compactory_connectors.connect.converters import REGISTRY as CONVERTERS
from compactory_connectors.connect.setting import Setting, Status
from compactory_connectors.source.config.keys import SETTINGS
from compactory_connectors.source.config.producer_properties import MOOT, REFUSED, RENAMED

from .markdown import cell, code, page, table

__all__ = ["page_text"]

_INTRO = """\
A connector is the configuration of the Kafka Connect JDBC source connector: JSON, alone or as in Connect's REST API
(`{"name": …, "config": {…}}`, a list of those, or what `GET /connectors?expand=info` answers), or the `.properties` of
a standalone worker. Every key that Connect knows is in one of three groups; any other key is an error that names the
nearest one. All problems of a file are reported together, before anything is written."""

_MODES = """\
The column on the right is what the real connector does. It misses the same rows: those that commit late, when
their place in the order was read already. `source validate` and the status show which of the two a table gets.

A `query` may have WHERE, WITH, ORDER BY and a comment at its end: the source puts it in brackets, and conditions around
it. Each of its columns must have a name of its own.

The source looks for tables that match patterns every `table.poll.interval.ms`; new and dropped tables don't disturb the
others. A failure of a table, a row that can't be converted, or a name that makes no topic stops only that table: its
state is `FAILED`, its detail names row and column, and the source tries again with growing pauses.
`query.retry.attempts` limits the attempts, `errors.tolerance=all` skips the row.

An existing topic must be compacted, and the source creates compacted topics. If
`topic.creation.default.cleanup.policy` says otherwise, both may have another policy, and records need no key."""

_ANY = "[whatever its timestamp](../adr/0002-the-cursor-is-a-snapshot-horizon.md)"
_WHOLE = "the whole of it at each poll"
_AFTER = "rows after the last timestamp and id, up to now less `timestamp.delay.interval.ms`"
_READING = [
    [
        "`bulk`",
        f"{_WHOLE}; hard deletes where it is [adopted](../adopt.md), or with `compactory.bulk.deletes`",
        f"{_WHOLE}; hard deletes with `compactory.bulk.deletes`",
    ],
    ["`incrementing`", "rows above the highest id; not those that commit late with a lower one", "the same"],
    ["`timestamp`", f"every committed change, {_ANY}, in the order of the columns", _AFTER],
    ["`timestamp+incrementing`", "the same, in the order of timestamp and id", "the same"],
]

_TRANSACTIONS = """\
With `compactory.transactions=off` records go out first and the offset after them, without a Kafka transaction. They are
visible some milliseconds sooner, with these disadvantages:"""

_PRICE = [
    ["a crash, an outage", "each change is sent once", "the last page is sent again"],
    ["readers", "read committed, and wait for a transaction that is open", "see each record at once"],
    [
        "a source that is frozen and [wakes up late](../operations.md#several-sources-of-one-connector)",
        "is fenced, publishes nothing",
        "may leave an old value behind for good, although it sends nothing once its lease was not renewed for 2.5 s",
    ],
    ["offsets by hand", "also while a source runs, with `--force`", "stop the source"],
]

_PRODUCER = """\
`producer.override.*` takes the Java producer's names, and librdkafka's own. Renamed:
"""

_PLACEHOLDERS = """\
`${provider:key}` and `${provider:path:key}` are looked up in this order, and the first that has the key wins:

1. the file of `--provider NAME=FILE.properties`;
2. the environment: `${tpp:reference-data.db.url}` → `TPP_REFERENCE_DATA_DB_URL`;
3. `config.providers.*` of the connector: `FileConfigProvider`, `EnvVarConfigProvider`, `DirectoryConfigProvider`."""

_TRANSFORMS = """\
`transforms`, `predicates` and `compactory.transform`: [transforms and their options](transforms.md)."""

_HEADINGS = {
    Status.HONOURED: ("Keys with an effect", "default"),
    Status.MOOT: ("Keys that are accepted and change nothing", "why"),
    Status.REFUSED: ("Keys that are refused", "why, and what to do"),
}


def page_text() -> str:
    """The page."""
    parts: list[str] = [_INTRO]
    for status, (heading, column) in _HEADINGS.items():
        rows = [_row(item) for item in SETTINGS if item.status is status]
        parts += [f"## {heading}", table(["key", "meaning", column], rows)]
    where = ["`mode`", "of a table", "of a view, a foreign table, a `query`, or with `query.suffix`"]
    parts += ["## Modes", table(where, _READING), _MODES]
    parts += ["## Transactions", _TRANSACTIONS, table(["", "`on`", "`off`"], _PRICE)]
    parts += ["## Producer properties", _PRODUCER, table(["Java", "here"], _producer())]
    parts += ["## Placeholders", _PLACEHOLDERS]
    parts += ["## Transforms", _TRANSFORMS]
    parts += ["## Converters", table(["class", "option", "meaning", "default"], _classes(CONVERTERS))]
    return page("Connector", "`connectors/compactory_connectors/source/config/keys.py`", *parts)


def _producer() -> Iterator[list[str]]:
    for name, here in RENAMED.items():
        if name != here:
            yield [code(name), code(here)]
    for name, note in MOOT.items():
        yield [code(name), cell(f"no effect: {note}")]
    for name, note in REFUSED.items():
        yield [code(name), cell(f"refused: {note}")]
    yield [code("buffer.memory"), "`queue.buffering.max.kbytes`, in KiB"]
    yield [code("ssl.keystore.location"), "`ssl.keystore.location`, a PKCS12 file; JKS must be converted"]


def _row(item: Setting) -> list[str]:
    if item.status is not Status.HONOURED:
        return [code(item.name), cell(item.meaning), cell(item.note)]
    return [code(item.name), cell(item.meaning), "empty" if item.default == "" else code(item.default)]


def _classes(registry: Mapping[str, Any]) -> Iterator[list[str]]:
    for name, entry in registry.items():
        options: Iterable[Setting] = entry.options
        for option in options:
            default = "required" if option.default is None else code(option.default) if option.default else "empty"
            yield [code(name), code(option.name), cell(option.meaning), default]
