"""Keys that say what a row becomes: column types, converters, transforms, errors."""

from __future__ import annotations

from ...javatext.java_zone import read_zone
from ...record.column_options import Calendar, ColumnTypes, Granularity, NumericMapping
from ...setting import Setting, at_least, boolean, honoured, member_of, moot, names, one_of, refused, required_text

__all__ = ["KEYS"]

KEYS: tuple[Setting, ...] = (
    honoured("numeric.mapping", "how NUMERIC columns become numbers", "none", member_of(NumericMapping)),
    honoured("numeric.precision.mapping", "older form of numeric.mapping: true is precision_only", "false", boolean),
    honoured("timestamp.granularity", "how timestamps become values", "connect_logical", member_of(Granularity)),
    honoured("db.timezone", "time zone of timestamps without one", "UTC", read_zone),
    honoured("date.calendar.system", "calendar of dates before 1582-10-15", "LEGACY", member_of(Calendar)),
    honoured(
        "compactory.types",
        "column types: those that the real connector supports, or all",
        "connector",
        member_of(ColumnTypes),
    ),
    honoured(
        "key.converter", "class that writes keys", "org.apache.kafka.connect.storage.StringConverter", required_text
    ),
    honoured("key.converter.*", "options of the key's converter"),
    honoured(
        "value.converter", "class that writes values", "org.apache.kafka.connect.json.JsonConverter", required_text
    ),
    honoured("value.converter.*", "options of the value's converter"),
    honoured(
        "header.converter",
        "class that writes headers",
        "org.apache.kafka.connect.storage.SimpleHeaderConverter",
        required_text,
    ),
    honoured("header.converter.*", "options of the header's converter"),
    honoured("transforms", "aliases of the transforms, in order, separated by commas", "", names),
    honoured("transforms.*", "class and options of a transform"),
    honoured("predicates", "aliases of the conditions of transforms, separated by commas", "", names),
    honoured("predicates.*", "class and options of a condition"),
    honoured("compactory.transform", "a Python function behind the transforms: module:function", None, required_text),
    honoured(
        "errors.tolerance",
        "a row that can't be converted stops its table (none), or is skipped and counted (all)",
        "none",
        one_of("none", "all"),
    ),
    honoured("errors.log.enable", "log every skipped row; else the first of a table and the count", "false", boolean),
    honoured(
        "errors.log.include.messages",
        "name a row that is skipped, or stops its table, by its id in the log; values never appear",
        "false",
        boolean,
    ),
    moot(
        "errors.retry.timeout",
        "how long a failed operation is tried again",
        "conversions have nothing to wait for",
        at_least(-1),
    ),
    moot("errors.retry.delay.max.ms", "pause between tries", "conversions have nothing to wait for", at_least(0)),
    refused("errors.deadletterqueue.*", "topic of failed records", "Kafka Connect has it for sinks only; leave it out"),
)
