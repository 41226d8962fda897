"""Encoders of payloads. A payload that does not fit fails at the publisher, in its transaction."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, TypeAlias, cast

from compactory.codec.encoding import error_summary, first_difference
from compactory.errors import CompactoryError, ConfigError, WriteRefused

__all__ = ["Encoder", "encoder_of"]

Encoder: TypeAlias = Callable[[Any], bytes]
"""Payload → bytes. Raises WriteRefused, whose text has the topic and no value."""


def encoder_of(topic: str, source: Any) -> Encoder:
    """Return an encoder of a pydantic model, or of a function of the payload. Raises ConfigError for anything else."""
    if not callable(source):
        kind = type(source).__name__
        raise ConfigError(f"encoder of topic {topic!r}: give a pydantic model, or a function to bytes, not {kind}")
    encode = partial(_encode_model, source) if hasattr(source, "model_validate") else source

    def encode_or_refuse(payload: Any) -> bytes:
        try:
            return cast("bytes", encode(payload))
        except CompactoryError as error:
            raise WriteRefused(f"payload for topic {topic!r}: {error}") from error
        except Exception as error:
            raise WriteRefused(f"payload for topic {topic!r} does not fit: {error_summary(error)}") from error

    return encode_or_refuse


def _encode_model(model: Any, payload: Any) -> bytes:
    """Return JSON by alias, as readers validate it. Raises WriteRefused if it is read back as something else."""
    checked = model.model_validate(payload)
    data: bytes = checked.model_dump_json(by_alias=True).encode()
    path = first_difference(checked, model.model_validate_json(data))
    if path is not None:
        raise WriteRefused(
            f"{path or 'all of it'} would be read as something else (left out by exclude=True, masked as SecretStr, or"
            " not what JSON has: NaN and infinities)"
        )
    return data
