"""``Cast$Key/$Value`` (org.apache.kafka.connect.transforms): from one primitive type to another.

The conversions are those of ``Cast.castValueToType``.
"""

from __future__ import annotations

import re
from base64 import b64encode
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from decimal import Decimal
from fractions import Fraction
from functools import partial
from typing import Any

from ..javatext.date_format import DateFormat
from ..javatext.java_calendar import MILLIS_PER_DAY
from ..javatext.java_number import double_text_of, float_text_of, wrapped
from ..record.record import TIMES, WHOLES, Constant, Java, Node, Record, RowError, Step, StructNode, with_step
from ..record.row_value import java_of, time_number
from ..record.schema import Schema, Type
from ..setting import JAVA_BLANKS, nearest, non_empty_names, option
from .transform import Sided, TransformError, absent, change_fields, no_defaults

__all__ = ["Cast", "caster", "float32"]

_TARGETS = {
    kind.name.lower(): kind
    for kind in (Type.INT8, Type.INT16, Type.INT32, Type.INT64, Type.FLOAT32, Type.FLOAT64, Type.BOOLEAN, Type.STRING)
}

_LOSSLESS = {(small, wide) for number, small in enumerate(WHOLES) for wide in (*WHOLES[number:], Java.STRING)}
_LOSSLESS |= {(java, java) for java in Java} | {(Java.BOOLEAN, wide) for wide in (*WHOLES, Java.STRING)}
_LOSSLESS |= {(java, Java.STRING) for java in (Java.FLOAT, Java.DOUBLE, Java.DECIMAL, Java.BYTES)}

_FLOATS = {Java.FLOAT, Java.DOUBLE}
_BITS = {Type.INT8: 8, Type.INT16: 16, Type.INT32: 32, Type.INT64: 64}
_SOURCES = {Java.BOOLEAN, Java.STRING, Java.DECIMAL, Java.BYTES, *WHOLES, *_FLOATS, *TIMES}

_INTEGER = re.compile(r"[+-]?\d+")
_DECIMAL = re.compile(r"[+-]?(?:(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?[fFdD]?|NaN|Infinity)", re.ASCII)
_HEXADECIMAL = re.compile(r"[+-]?0[xX](?:[0-9a-fA-F]+\.?[0-9a-fA-F]*|\.[0-9a-fA-F]+)[pP][+-]?\d+[fFdD]?", re.ASCII)

_OF_TIME = DateFormat("HH:mm:ss.SSS'Z'")
_OF_DATE = DateFormat("yyyy-MM-dd")
_OF_TIMESTAMP = DateFormat("yyyy-MM-dd'T'HH:mm:ss.SSS'Z'")


def _spec(text: str) -> Mapping[str, Type]:
    """Return types by names of fields; the type of the whole half has the empty name."""
    casts: dict[str, Type] = {}
    parts = non_empty_names(text)
    for part in parts:
        name, colon, target = (piece.strip() for piece in part.rpartition(":"))
        if ":" in name or (colon and not name):
            raise ValueError(f"must be field:type or one type: {part} is neither")
        if target.lower() not in _TARGETS:
            raise ValueError(f"must name types: {target} is none of {', '.join(_TARGETS)}{nearest(target, _TARGETS)}")
        casts[name] = _TARGETS[target.lower()]
    if "" in casts and len(parts) > 1:
        raise ValueError("must be one type alone, or fields with their types: both at once contradict each other")
    return casts


@dataclass(frozen=True, slots=True)
class Cast(Sided):
    """Casts as Java narrows: integers wrap around, floats are cut off and saturate, texts are parsed."""

    spec: Mapping[str, Type] = option(
        f"field:type pairs, or one type for the whole key or value; types: {', '.join(_TARGETS)}", parse=_spec
    )
    replace_null_with_default: bool = no_defaults()

    def apply(self, record: Record) -> Record:
        half = self.side.of(record)
        if half is None or absent(half):
            return record
        if whole := self.spec.get(""):
            node = _cast({f"the {self.side}": whole}, half, f"the {self.side}")
            # the class keeps name and parameters of the schema, even of a logical type
            schema = replace(half.schema, type=node.schema.type, fields=())
            return self.side.put(record, replace(node, schema=schema))
        return change_fields(record, self.side, "Cast", self.spec, partial(_cast, self.spec))


def _cast(targets: Mapping[str, Type], node: Node, field: str) -> Node:
    schema = Schema(type=targets[field], optional=node.schema.optional)
    java = java_of(schema)
    if isinstance(node, StructNode):
        raise TransformError(f"{field} is a struct, which can't be cast")
    if absent(node):
        return Constant(schema=schema, java=java, value=None)
    try:
        step = Step(caster(node.java, node.schema, schema.type), lossless=(node.java, java) in _LOSSLESS)
        return with_step(node, schema, java, step)
    except RowError as error:
        raise TransformError(f"{field}: {error}") from None
    except ValueError as error:
        raise TransformError(f"{field} {error}") from None


def caster(java: Java, schema: Schema, target: Type) -> Callable[[Any], Any]:
    """Return the function from a value of ``java``, which is not null, to one of ``target``.

    The function raises RowError for a value on which Kafka Connect fails. Where Connect fails on every value, this
    function raises ValueError, whose text follows a field's name.
    """
    if java not in _SOURCES:
        raise ValueError(f"is of class {java.value}, which can't be cast")
    if target is Type.STRING:
        return _TEXTS.get(java, str)
    if java is Java.BYTES:
        raise ValueError("holds bytes, which can be cast to string only")
    if java is Java.STRING:
        return _PARSERS[target]
    if java in TIMES:
        if (number := time_number(schema, java)) is None:
            raise ValueError(f"is of class {java.value} without its logical type, which can't be cast to a number")
        narrow = _narrow(int, target)
        return lambda value: narrow(number(value))
    kind = int if java in WHOLES or java is Java.BOOLEAN else float if java in _FLOATS else Decimal
    return _narrow(kind, target)


def _narrow(kind: type, target: Type) -> Callable[[Any], Any]:
    if target is Type.BOOLEAN:
        long = _narrow(kind, Type.INT64)
        return lambda value: long(value) != 0
    if target is Type.FLOAT64:
        return float
    if target is Type.FLOAT32:
        return float32
    bits = _BITS[target]
    if kind is float:
        return lambda value: wrapped(_saturated(value, max(bits, 32)), bits)
    return lambda value: wrapped(int(value), bits)


def _saturated(value: float, bits: int) -> int:
    """Return ``value`` cut off toward zero; the nearest end of the range for one out of it, 0 for NaN."""
    if value != value:
        return 0
    maximum = (1 << (bits - 1)) - 1
    if value >= maximum:
        return maximum
    return -maximum - 1 if value <= -maximum - 1 else int(value)


def float32(value: float | Decimal) -> float:
    """Return the float nearest to an exact number, ties to even. Rounding to a double first may miss it."""
    if isinstance(value, float) and (value != value or value in {float("inf"), float("-inf")}):
        return value
    rough = float(value)
    if rough == 0.0:
        return rough
    exact = abs(Fraction(value))
    exponent = exact.numerator.bit_length() - exact.denominator.bit_length()
    if exact < Fraction(2) ** exponent:
        exponent -= 1
    quantum = Fraction(2) ** (max(exponent, -126) - 23)
    size = round(exact / quantum) * quantum
    result = float("inf") if size >= 1 << 128 else float(size)
    return -result if rough < 0 else result


def _not_a_number(kind: str) -> RowError:
    return RowError(f"Cast: the text is not {kind}, or out of its range")


def _integer_parser(bits: int) -> Callable[[str], int]:
    def parse(text: str) -> int:
        # Java takes the digits of any script, but of 16 bits only
        number = int(text) if _INTEGER.fullmatch(text) and max(text) <= "\uffff" else None
        if number is None or wrapped(number, bits) != number:
            raise _not_a_number(f"a whole number of {bits} bits")
        return number

    return parse


def parse_double(text: str) -> float:
    """Return ``Double.parseDouble``. Raises RowError."""
    text = text.strip(JAVA_BLANKS)
    if _DECIMAL.fullmatch(text):
        return float(text.rstrip("fFdD") if text[-1:] in "fFdD" else text)
    if _HEXADECIMAL.fullmatch(text):
        try:
            return float.fromhex(text.rstrip("fFdD") if text[-1] in "fFdD" else text)
        except OverflowError:
            return float("-inf" if text.startswith("-") else "inf")
    raise _not_a_number("a number")


def parse_float(text: str) -> float:
    """Return ``Float.parseFloat``. Raises RowError."""
    rough = parse_double(text)
    if rough in {0.0, float("inf"), float("-inf")} or rough != rough:
        return rough
    text = text.strip(JAVA_BLANKS).rstrip("fFdD") if "x" not in text.lower() else ""
    return float32(Decimal(text)) if text else float32(rough)


_PARSERS: Mapping[Type, Callable[[str], Any]] = {
    **{target: _integer_parser(bits) for target, bits in _BITS.items()},
    Type.FLOAT32: parse_float,
    Type.FLOAT64: parse_double,
    Type.BOOLEAN: lambda text: text.lower() == "true" if text.isascii() else False,
}


def _date_text(millis: int) -> str:
    """Return the text by ``Values.dateFormatFor``: a value before the second day of 1970 counts as a time."""
    if millis < MILLIS_PER_DAY:
        return _OF_TIME.format(millis)
    return (_OF_TIMESTAMP if millis % MILLIS_PER_DAY else _OF_DATE).format(millis)


_TEXTS: Mapping[Java, Callable[[Any], str]] = {
    **dict.fromkeys(TIMES, _date_text),
    Java.BOOLEAN: lambda value: "true" if value else "false",
    Java.BYTES: lambda value: b64encode(value).decode(),
    Java.DOUBLE: lambda value: double_text_of(value).decode(),
    Java.FLOAT: lambda value: float_text_of(value).decode(),
    Java.SQL_TIMESTAMP: lambda micros: _date_text(micros // 1000),
}
