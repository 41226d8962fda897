"""Handlers: the parameters of a decorated function, and the type of its payloads."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Coroutine, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Literal, get_args, get_origin, get_type_hints

from pydantic import PydanticUserError, TypeAdapter, ValidationError
from pydantic_core import to_json

from compactory.codec.encoding import error_summary, first_difference
from compactory.errors import WriteRefused
from compactory_connectors.retry import Retry

from .job import Job

__all__ = ["Handler", "OnFailure", "PayloadType"]

OnFailure = Literal["wait", "skip"]
"""What later jobs of a group do when one fails: wait until it has succeeded or is discarded, or run."""

_LOSSES: Final = "left out by exclude=True, masked as SecretStr, or not what JSON has: NaN and infinities"
"""Why a model's JSON may lack a part of it."""

_NUL = re.compile(r"(?<!\\)(?:\\\\)*\\u0000")  # as JSON has it


class PayloadType:
    """The type of a job's payloads: any type that pydantic knows, or any JSON."""

    def __init__(self, type_: str, annotation: Any = Any) -> None:
        self._type = type_
        self._is_any = annotation is Any
        self._adapter: TypeAdapter[Any] = TypeAdapter(annotation)
        self._check = self._adapter.validator.validate_python  # the adapter's own methods take twice as long
        self._read = self._adapter.validator.validate_json
        self._write = self._adapter.serializer.to_json

    def encode(self, payload: Any) -> str:
        """Return the payload as JSON. Raises WriteRefused where it does not fit; no text shows a value.

        Models are written by alias and without computed fields, as they are read. The handler must get what was given,
        so the text is read back; where any JSON is taken, only NaN, infinities and secrets are looked for.
        """
        try:
            checked = self._check(payload)
            text = self._write(checked, by_alias=True, round_trip=True).decode()
            problem = _loss(checked, text) if self._is_any else self._difference(checked, text)
        except ValidationError as error:
            raise self._refused(error) from None
        except ValueError as error:  # a value that pydantic can't write as JSON
            raise WriteRefused(f"payload of job {self._type!r} is no JSON: {type(error).__name__}") from None
        if problem is None and "u0000" in text and _NUL.search(text):
            problem = "has the character NUL, which Postgres can't hold"
        if problem is not None:
            raise WriteRefused(f"payload of job {self._type!r} {problem}")
        return text

    def decode(self, text: str) -> Any:
        """Return the payload as the handler gets it. Raises WriteRefused where it does not fit."""
        try:
            return self._read(text)
        except ValidationError as error:
            raise self._refused(error) from None

    def _difference(self, checked: Any, text: str) -> str | None:
        """Return the problem of a text that does not read back as the payload. Raises ValidationError."""
        path = first_difference(checked, self._read(text))
        return None if path is None else f"would be read as something else: {path or 'all of it'} ({_LOSSES})"

    def _refused(self, error: ValidationError) -> WriteRefused:
        return WriteRefused(f"payload of job {self._type!r} does not fit: {error_summary(error)}")


def _loss(payload: Any, text: str) -> str | None:
    """Return the problem of a text that lacks a part of the payload, for handlers that take any JSON."""
    if "null" in text:  # pydantic writes NaN and infinities so
        constants = to_json(payload, by_alias=True, round_trip=True, inf_nan_mode="constants")
        if constants.decode() != text:
            return "is no JSON: it has NaN or an infinity"
    if "****" in text and _has_secret(payload):
        return f"has a secret that would be masked ({_LOSSES})"
    return None


def _has_secret(value: Any) -> bool:
    """Return True if there is a SecretStr or SecretBytes in the value, in a mapping, a sequence or a model."""
    if isinstance(value, Mapping):
        return any(map(_has_secret, value.values()))
    if isinstance(value, list | tuple | set | frozenset):
        return any(map(_has_secret, value))
    return hasattr(value, "get_secret_value") or (hasattr(type(value), "model_fields") and _has_secret(vars(value)))


@dataclass(slots=True)
class Handler:
    """The function of a type of jobs. ``takes_connection``: it is called with the connection that commits the job.

    ``keeps_history`` False: jobs that succeed are deleted at once. ``problems`` say what is wrong with the function.
    """

    type: str
    function: Callable[..., Any]
    retry: Retry
    timeout: float | None
    on_failure: OnFailure
    keeps_history: bool
    payload: PayloadType = field(init=False)
    is_async: bool = field(init=False)
    takes_connection: bool = field(init=False)
    problems: list[str] = field(init=False)

    def __post_init__(self) -> None:
        parameters = list(inspect.signature(self.function).parameters.values())
        annotation, problems = _payload(self.function, parameters)
        problems += [*_shape(self.function, parameters), *_limits(self.timeout, self.on_failure)]
        self.payload = PayloadType(self.type, annotation)
        self.is_async = inspect.iscoroutinefunction(self.function)
        self.takes_connection = len(parameters) == 2
        self.problems = [f"handler of {self.type!r}: {item}" for item in (*problems, *self.retry.problems())]

    def call(self, *arguments: Any) -> None:
        """Call a function. Raises TypeError for a coroutine that it returned: nothing has run it."""
        result = self.function(*arguments)
        if isinstance(result, Coroutine):
            result.close()
            raise TypeError("the handler returned a coroutine, which did not run: make the handler an async def")


def _payload(function: Callable[..., Any], parameters: list[inspect.Parameter]) -> tuple[Any, list[str]]:
    """The ``T`` of a first parameter that is annotated as ``Job[T]``."""
    if not parameters or parameters[0].annotation is inspect.Parameter.empty:
        return Any, []
    try:
        hint = get_type_hints(function).get(parameters[0].name)
        if get_origin(hint) is not Job:
            return Any, []
        (annotation,) = get_args(hint)
        TypeAdapter(annotation)
    except (NameError, TypeError, PydanticUserError) as error:
        return Any, [f"the annotation of {parameters[0].name!r} can't be used: {error}"]
    return annotation, []


def _shape(function: Callable[..., Any], parameters: list[inspect.Parameter]) -> Iterator[str]:
    if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
        yield "it yields, and nothing would run it: return, or use def or async def without yield"
    if len(parameters) not in {1, 2} or any(p.kind is not p.POSITIONAL_OR_KEYWORD for p in parameters):
        yield "it must take the job, or the job and the connection that commits it"


def _limits(timeout: float | None, on_failure: str) -> Iterator[str]:
    if timeout is not None and timeout <= 0:
        yield "timeout must be positive, in seconds"
    if on_failure not in get_args(OnFailure):
        yield f"on_failure must be one of {', '.join(get_args(OnFailure))}, not {on_failure!r}"
