"""Transforms and predicates with their options and an example each, from the registry that the parser itself uses."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping

from compactory_connectors.connect.setting import Setting
from compactory_connectors.connect.transforms import PREDICATES, REGISTRY
from compactory_connectors.connect.transforms.registry import Entry

from .markdown import cell, code, page, table, unmarked

__all__ = ["EXAMPLES", "page_text"]

_INTRO = """\
`transforms` lists the aliases of a connector's transforms in order. `transforms.<alias>.type` is the Java class; its
package may be left out, as in Kafka Connect. The other keys below are options of the class. Every transform also
takes `predicate`, the alias of one of `predicates`, and `negate`. Then the transform applies only to records for
which the predicate is true, or with `negate=true` only to the other records.

`examples/connectors/tariffs.json` is a complete connector with transforms of many kinds.

The tests compare the results with the real classes of Kafka Connect 4.1 and `kafka-connect-transform-common`, over
more than a thousand chains (`tests/golden/transforms`). They compare topic, key and value, with and without
schemas, and the records that a chain refuses.

Compactory compiles a chain once for each table. A chain that does not fit the columns of a table is a problem of the
configuration, found before anything is sent: a missing field, two fields of one name, a type that can't be cast. A
value that can't be converted is an error of its row, and `errors.tolerance` decides about it.

**Null.** Each class treats a null key or value in its own way, and Compactory does the same row by row. `Cast`,
`Flatten`, `InsertField` and `ReplaceField` leave null alone; `MaskField` and `ValueToKey` fail. A whole
value can only be null if `ExtractField` has replaced it by a nullable column: the source's records are structs with a
schema.

**Deletions.** Compactory sends deletions for rows that were deleted or deactivated. Only their key and topic pass
through the chain. `RecordIsTombstone` is not asked about them, and a `Filter` drops a deletion if it would drop the
row."""

_DIFFERENCES = """\
- A configuration that would fail on every record is refused at once. Kafka Connect finds out at the first record.
- A field that a later transform removes is neither read from Postgres nor converted, so it can't fail a row.
- Unknown options are refused with the nearest name; Kafka Connect ignores them. `negate` without `predicate` is
  refused.
- `Cast`, `MaskField`, `ReplaceField` and `TimestampConverter` warn of a field that is missing. Kafka Connect says
  nothing.
- Records have no headers, and no topics that change with the time: `InsertHeader`, `HeaderFrom`, `DropHeaders`,
  `HasHeaderKey` and `TimestampRouter` are refused. `TimestampRouter` fails on every record of the real JDBC source.
- `InsertField`: `timestamp.field` and `partition.field` are null, as with the JDBC source; `offset.field` is refused.
- `HoistField$Key` on records without a key is refused: it would give all records one key.
- `ReplaceField` refuses two fields that are renamed to one name. In Kafka Connect their hashes decide which one
  stays. `whitelist` and `blacklist`, which Kafka Connect 4 has dropped, mean `include` and `exclude`.
- `SimpleDateFormat` works in UTC, with the fields `yyyy MM dd HH mm ss SSS`, `X` to `XXX` and `Z`. The others are
  refused. A text is read strictly: the whole text must match, and numbers out of range fail the row.
- Regular expressions have what Java and Python write alike: characters, `.`, `^`, `$`, `|`, classes such as `[^a-z_]`,
  `\\d \\w \\s` and their opposites, escaped signs, groups (plain, named, `(?:…)`), look-ahead, repetitions, and flags
  at the start. The rest is refused by its name, such as `\\Q`, `\\p{…}`, look-behind, and classes within classes.
- An empty option counts as a missing one."""

_FUNCTION = """\
`compactory.transform` names a Python function as `module:function`. It is called with every row, after all
transforms:

```python
from compactory_connectors.source import SourceRecord


def mask(record: SourceRecord) -> SourceRecord | None:
    if record.value["country"] == "XX":
        return None  # drops the row
    record.value["iban"] = record.value["iban"][-4:]
    return record  # or record.with_value(…); None as value is a tombstone
```

`record` has `topic`, `key` and `value`. A struct is a dict, a NUMERIC column a `Decimal`, bytes are `bytes`. Dates
are days since 1970-01-01, times are milliseconds since midnight, timestamps are milliseconds since 1970. Values must
be JSON without schemas: `JsonConverter` with `schemas.enable=false`. The function may change, add or remove any
field. A field that it leaves alone is written byte for byte as without the function. It can't change topic and key:
deletions need them too, and have no value.

The module must be importable (installed, or on `PYTHONPATH`); the source imports it when it reads the configuration.
An exception of the function is an error of the row. Its report names the class and the line, never the text, which
may show values. The function runs in the source's thread, one row after another, and may see a row twice. A row costs
the call and the conversion of its values in both directions: about ten times a chain of usual transforms."""

EXAMPLES: Mapping[str, Mapping[str, str]] = {
    "Cast$Value": {"spec": "tariff:float64,zip:string"},
    "ChangeCase$Value": {"from": "LOWER_UNDERSCORE", "to": "LOWER_CAMEL"},
    "ExtractField$Key": {"field": "id"},
    "Filter": {"predicate": "isInternal"},
    "Flatten$Value": {"delimiter": "_"},
    "HoistField$Value": {"field": "payload"},
    "InsertField$Value": {"static.field": "source!", "static.value": "shop", "topic.field": "topic"},
    "MaskField$Value": {"fields": "iban", "replacement": "***"},
    "RegexRouter": {"regex": "prod\\.(.*)", "replacement": "$1"},
    "ReplaceField$Value": {"exclude": "comment", "renames": "terminal_id:terminalId"},
    "SetSchemaMetadata$Value": {"schema.name": "shop.Terminal", "schema.version": "2"},
    "TimestampConverter$Value": {"field": "updatedDate", "target.type": "string", "format": "yyyy-MM-dd HH:mm:ss.SSS"},
    "ValueToKey": {"fields": "tenant,id"},
    "RecordIsTombstone": {},
    "TopicNameMatches": {"pattern": "internal-.*"},
}
"""Options of an example by class without its package."""


def page_text() -> str:
    """The page."""
    parts: list[str] = [_INTRO, "## Transforms"]
    for name, entry in _plain(REGISTRY).items():
        parts += _described(name, entry, "transforms.x")
    parts += ["## Predicates"]
    for name, entry in _plain(PREDICATES).items():
        parts += _described(name, entry, "predicates.isInternal")
    parts += ["## A Python function", _FUNCTION, "## Other than in Kafka Connect", _DIFFERENCES]
    return page("Transforms", "`connectors/compactory_connectors/connect/transforms`", *parts)


def _plain(registry: Mapping[str, Entry]) -> dict[str, Entry]:
    """The registry without the second of two forms."""
    return {name.removesuffix("$Key"): entry for name, entry in registry.items() if not name.endswith("$Value")}


def _described(name: str, entry: Entry, prefix: str) -> Iterator[str]:
    short = name.rsplit(".", 1)[1]
    example = next(key for key in EXAMPLES if key.split("$")[0] == short)
    sides = "`, `$Key` or `$Value`" if "$" in example else "`"
    yield f"### {short}"
    yield f"`{name}{sides}. {unmarked(entry.summary)}"
    if entry.options:
        yield table(["option", "meaning", "default"], map(_option, entry.options))
    settings = {f"{prefix}.type": f"{name}{example[len(short) :]}"}
    settings |= {f"{prefix}.{key}": value for key, value in EXAMPLES[example].items()}
    yield f"```json\n{json.dumps(settings, indent=1, ensure_ascii=False)}\n```"


def _option(option: Setting) -> list[str]:
    default = "required" if option.default is None else code(option.default) if option.default else "empty"
    return [code(option.name), cell(option.meaning), default]
