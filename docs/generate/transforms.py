"""Transforms and predicates with their options and an example each, from the registry that the parser itself uses."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping

from compactory_connectors.source.record.transforms import PREDICATES, REGISTRY
from compactory_connectors.source.record.transforms.registry import Entry
from compactory_connectors.source.setting import Setting

from .markdown import cell, code, page, table, unmarked

__all__ = ["EXAMPLES", "page_text"]

_INTRO = """\
`transforms` lists the aliases of a connector's transforms in their order; `transforms.<alias>.type` is the Java
class, with its package or, as Kafka Connect takes it too, without, and the other keys below are its options. Every
transform takes `predicate`, the alias of one of `predicates`, and `negate`: it is then applied to the records that
the predicate is true of, or with `negate=true` to the others.

A whole connector with transforms of many kinds is `examples/connectors/tariffs.json`.

What comes out is compared with the real classes of Kafka Connect 4.1 and `kafka-connect-transform-common`, for more
than a thousand chains of them (`tests/golden/transforms`): topic, headers, key and value, with and without schemas,
and which records they refuse.

A chain is compiled once for each table and costs a row only what its values need. What does not fit the columns of a
table is a problem of the configuration, found before anything is sent: a field that is not there, two fields of one
name, a type that can't be cast. A value that can't be converted is an error of its row, about which
`errors.tolerance` decides.

**Null.** Kafka Connect's transforms treat a null key or value in ways of their own (`Cast`, `Flatten`, `InsertField`
and `ReplaceField` leave it alone, `MaskField`, `ValueToKey` and `HeaderFrom` fail); so do these, row by row. A whole
value is null only where `ExtractField` has put a nullable column in its place: the source's records are structs,
always with a schema.

**Deletions** that Compactory sends, for rows that were deleted or deactivated, do not come through the chain as
records: their key and topic do, `RecordIsTombstone` is not asked about them, and a `Filter` drops a deletion where it
would drop the row."""

_DIFFERENCES = """\
- A configuration that would fail on every record is refused at once; Kafka Connect finds out when the first record
  comes.
- What a later transform leaves out is neither read from Postgres nor converted, so it can't fail a row.
- Unknown options are refused with the nearest name; Kafka Connect ignores them. `negate` without `predicate` is
  refused.
- Fields that are named and not there are warned of, where Kafka Connect passes over them in silence: in `Cast`,
  `MaskField`, `ReplaceField` and `TimestampConverter`.
- `TimestampRouter` takes the time at which a record is sent. In Kafka Connect it fails on every record of the JDBC
  source, which have no timestamp. Topics are created when their time comes, keys are not swept from them, and the
  offset goes on belonging to the topic without the time, which is created too.
- `InsertField`: `timestamp.field` and `partition.field` are null, as with the JDBC source; `offset.field` is refused.
- `HoistField$Key` on records without a key is refused: it would give all records one key.
- `InsertHeader` takes plain words, whole numbers, `true`, `false` and `null`: what Kafka Connect writes as it stands.
  A struct is not written into a header.
- `ReplaceField` refuses two fields renamed to one name; in Kafka Connect it depends on their hashes which one wins.
  `whitelist` and `blacklist`, which Kafka Connect 4 has dropped, are taken for `include` and `exclude`.
- `SimpleDateFormat` in UTC, English, with the weeks of the United States. `F`, `u` and letters of weeks are for writing
  only; of zones by name UTC and GMT are read.
- Regular expressions are Java's as far as Python writes them alike, with `\\Q…\\E`, `\\z`, `\\Z`, named groups and
  `\\p{…}` of `Alpha`, `Lower`, `Upper`, `Digit` and `Alnum`. Refused are classes within classes, other `\\p{…}`, `\\h`,
  `\\R`, `\\G`, `\\X`, flags in the middle of a pattern and look-behinds of variable length.
- An empty option counts as one that is not given."""

_FUNCTION = """\
`compactory.transform` names a Python function, `module:function`, that is called behind all transforms with every
row:

```python
from compactory_connectors.source import SourceRecord


def mask(record: SourceRecord) -> SourceRecord | None:
    if record.value["country"] == "XX":
        return None  # drops the row
    record.value["iban"] = record.value["iban"][-4:]
    return record  # or record.with_value(…); None as value is a tombstone
```

`record` has `topic`, `key` and `value`. A struct is a dict; dates are days since 1970-01-01, times milliseconds since
midnight, timestamps milliseconds since 1970, NUMERIC columns `Decimal`, bytes `bytes`. Values must be JSON without
schemas: `value.converter` is `JsonConverter` with `schemas.enable=false`. A field that the function leaves alone is
written as without it, to the byte; any field may be changed, added or left out. Topic and key belong to the
transforms: deletions need them where there is no value.

The module must be importable (installed, or on `PYTHONPATH`); it is imported when the configuration is read. What the
function raises is an error of the row and names the kind of exception and the line, never its text, which may hold
values. The function runs in the source's thread, one row after another, and the same row may come twice. It costs a
row its call and the conversion of its values both ways: ten times the transforms of the article, as a rule."""

EXAMPLES: Mapping[str, Mapping[str, str]] = {
    "Cast$Value": {"spec": "tariff:float64,zip:string"},
    "ChangeCase$Value": {"from": "LOWER_UNDERSCORE", "to": "LOWER_CAMEL"},
    "DropHeaders": {"headers": "internal"},
    "ExtractField$Key": {"field": "id"},
    "Filter": {"predicate": "isInternal"},
    "Flatten$Value": {"delimiter": "_"},
    "HeaderFrom$Value": {"fields": "tenant", "headers": "tenant", "operation": "copy"},
    "HoistField$Value": {"field": "payload"},
    "InsertField$Value": {"static.field": "source!", "static.value": "shop", "topic.field": "topic"},
    "InsertHeader": {"header": "source", "value.literal": "shop"},
    "MaskField$Value": {"fields": "iban", "replacement": "***"},
    "RegexRouter": {"regex": "prod\\.(.*)", "replacement": "$1"},
    "ReplaceField$Value": {"exclude": "comment", "renames": "terminal_id:terminalId"},
    "SetSchemaMetadata$Value": {"schema.name": "shop.Terminal", "schema.version": "2"},
    "TimestampConverter$Value": {"field": "updatedDate", "target.type": "string", "format": "yyyy-MM-dd HH:mm:ss.SSS"},
    "TimestampRouter": {"topic.format": "${topic}-${timestamp}", "timestamp.format": "yyyyMM"},
    "ValueToKey": {"fields": "tenant,id"},
    "HasHeaderKey": {"name": "internal"},
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
    return page("Transforms", "`connectors/compactory_connectors/source/record/transforms`", *parts)


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
