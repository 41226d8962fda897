"""Encoders of payloads. A payload that does not fit fails at the publisher, in its transaction."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any, cast

import orjson

from compactory.codec.encoding import error_summary, first_difference
from compactory.errors import CompactoryError, ConfigError, WriteRefused

__all__ = ["Encoder", "encoder_of"]

Encoder = Callable[[str, Any], bytes]
"""Topic and payload → bytes. Raises what the library below raises."""


def encoder_of(topic: str, source: Any) -> Encoder:
    """Make an encoder of a pydantic model, a JSON Schema, a serializer of a Schema Registry, or a function.

    Raises ConfigError for anything else, and for a JSON Schema where the package jsonschema is missing.
    """
    if isinstance(source, type) and hasattr(source, "model_validate"):
        return _refusing(_model(source))
    if isinstance(source, Mapping):
        return _refusing(_json_schema(topic, source))
    if _is_serializer(source):
        return _refusing(_serializer(source))
    if callable(source):
        return _refusing(lambda _topic, value: cast("bytes", source(value)))
    raise ConfigError(
        f"encoder of topic {topic!r}: give a pydantic model, a JSON Schema, a Schema Registry serializer or a function,"
        f" not {type(source).__name__}"
    )


def _refusing(encode: Encoder) -> Encoder:
    """Return an encoder that raises WriteRefused, with the topic and without values."""

    def refuse(topic: str, value: Any) -> bytes:
        try:
            return encode(topic, value)
        except CompactoryError:
            raise
        except Exception as error:
            raise WriteRefused(f"payload for topic {topic!r} does not fit: {_reason(error)}") from error

    return refuse


def _reason(error: Exception) -> str:
    """Return where a payload does not fit, and why. The libraries' own texts show the value."""
    path, rule = getattr(error, "json_path", None), getattr(error, "validator", None)  # jsonschema
    return f"{path}: {rule}" if path is not None else error_summary(error)


def _model(model: Any) -> Encoder:
    """Return an encoder that writes by alias, as readers validate, and reads back what it has written."""

    def encode(topic: str, value: Any) -> bytes:
        checked = model.model_validate(value)
        data: bytes = checked.model_dump_json(by_alias=True).encode()
        path = first_difference(checked, model.model_validate_json(data))
        if path is not None:
            raise WriteRefused(
                f"payload for topic {topic!r} would be read as something else: {path or 'all of it'} (left out by"
                " exclude=True, masked as SecretStr, or not what JSON has: NaN and infinities)"
            )
        return data

    return encode


def _json_schema(topic: str, schema: Mapping[str, Any]) -> Encoder:
    try:
        from jsonschema.validators import validator_for  # type: ignore[import-untyped]
    except ImportError as error:
        raise ConfigError(f"encoder of topic {topic!r}: a JSON Schema needs: pip install jsonschema") from error
    schema = dict(schema)
    validator_class = validator_for(schema)
    validator_class.check_schema(schema)
    validator = validator_class(schema)

    def encode(_topic: str, value: Any) -> bytes:
        validator.validate(value)
        data = orjson.dumps(value)
        validator.validate(orjson.loads(data))
        if b"null" in data:  # orjson writes NaN and infinities so
            json.dumps(value, allow_nan=False, default=str)
        return data

    return encode


def _is_serializer(source: Any) -> bool:
    return any(base.__module__.startswith("confluent_kafka.") for base in type(source).__mro__)


def _serializer(serializer: Any) -> Encoder:
    from confluent_kafka.serialization import MessageField, SerializationContext

    def encode(topic: str, value: Any) -> bytes:
        data: bytes = serializer(value, SerializationContext(topic, MessageField.VALUE))
        return data

    return encode
