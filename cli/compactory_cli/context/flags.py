"""Flags that every command takes, before or after the command's name; those after it win.

``@command`` adds them to a function whose first parameter is ``flags: Flags``, so that each command declares only its
own parameters.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass, field, fields
from enum import StrEnum
from functools import wraps
from pathlib import Path
from typing import Annotated, Any, Concatenate, ParamSpec

import typer

__all__ = ["Flags", "LogFormat", "LogLevel", "argument", "command", "option"]

P = ParamSpec("P")


class LogLevel(StrEnum):
    """The least severe log lines that are printed."""

    DEBUG = "debug"
    INFO = "info"
    WARNING = "warning"
    ERROR = "error"


class LogFormat(StrEnum):
    """How log lines look: for people, or an object a line for programs."""

    CONSOLE = "console"
    JSON = "json"


@dataclass(frozen=True, slots=True, kw_only=True)
class Flags:
    """The common flags; None and False mean not given."""

    config: Path | None = None
    kafka: str | None = None
    postgres: str | None = field(default=None, repr=False)
    json: bool = False
    log_level: LogLevel | None = None
    log_format: LogFormat | None = None

    def over(self, other: Flags) -> Flags:
        """These flags, and where they are not given those of ``other``."""
        return Flags(**{item.name: getattr(self, item.name) or getattr(other, item.name) for item in fields(Flags)})


def option(*names: str, help: str, metavar: str | None = None, **more: Any) -> Any:  # noqa: A002 (as typer calls it)
    """Return an option whose default `--help` does not show."""
    return typer.Option(*names, metavar=metavar, help=help, show_default=False, **more)


def argument(*, metavar: str, help: str) -> Any:  # noqa: A002
    """Return an argument whose default `--help` does not show."""
    return typer.Argument(metavar=metavar, help=help, show_default=False)


def _option(*names: str, metavar: str | None = None, text: str) -> Any:
    return option(*names, metavar=metavar, help=text, rich_help_panel="Common options")


def _common(
    *,
    config: Annotated[
        Path | None, _option("--config", metavar="FILE", text="Settings file, instead of ./compactory.toml.")
    ] = None,
    kafka: Annotated[str | None, _option("--kafka", metavar="HOST:PORT", text="Bootstrap servers of Kafka.")] = None,
    postgres: Annotated[str | None, _option("--postgres", metavar="URL", text="URL or DSN of the database.")] = None,
    json: Annotated[bool, _option("--json", text="Print JSON, errors included.")] = False,
    log_level: Annotated[LogLevel | None, _option("--log-level", text="Least severe log lines to print.")] = None,
    log_format: Annotated[
        LogFormat | None, _option("--log-format", text="Log format: console for people, json for programs.")
    ] = None,
) -> None:
    """Declare the common flags; their names are those of `Flags`."""


def command(function: Callable[Concatenate[Flags, P], None]) -> Callable[..., None]:
    """Give a command the common flags, gathered into its first parameter; one named ``context`` gets typer's."""
    own = {item.name: item for item in list(inspect.signature(function, eval_str=True).parameters.values())[1:]}
    wants_context = own.pop("context", None) is not None
    common = inspect.signature(_common, eval_str=True).parameters.values()
    context = inspect.Parameter("context", inspect.Parameter.KEYWORD_ONLY, annotation=typer.Context)
    parameters = [context, *(item.replace(kind=inspect.Parameter.KEYWORD_ONLY) for item in (*own.values(), *common))]

    @wraps(function)
    def with_flags(**values: Any) -> None:
        ctx: typer.Context = values.pop("context")
        given = Flags(**{item.name: values.pop(item.name) for item in fields(Flags)})
        ctx.obj = given.over(ctx.obj or Flags())
        if wants_context:
            values["context"] = ctx
        function(ctx.obj, **values)  # type: ignore[call-arg]  # typer passes what the signature below says

    with_flags.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    with_flags.__annotations__ = {item.name: item.annotation for item in parameters}
    return with_flags
