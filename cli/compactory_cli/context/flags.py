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

__all__ = ["Flags", "LogFormat", "LogLevel", "argument", "command", "flag", "option"]

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


def option(name: str, metavar: str | None = None, help: str = "", **more: Any) -> Any:  # noqa: A002 (as typer calls it)
    """Return an option with a value."""
    return typer.Option(name, metavar=metavar, help=help, **more)


def flag(name: str, help: str, *others: str) -> Any:  # noqa: A002
    """Return an option without a value."""
    return typer.Option(name, *others, help=help)


def argument(metavar: str, help: str) -> Any:  # noqa: A002
    """Return an argument whose default `--help` does not show."""
    return typer.Argument(metavar=metavar, help=help, show_default=False)


def _common_option(name: str, metavar: str | None, text: str) -> Any:
    return option(name, metavar, text, rich_help_panel="Common options")


def _common(
    *,
    config: Annotated[
        Path | None, _common_option("--config", "FILE", "Settings file, instead of ./compactory.toml.")
    ] = None,
    kafka: Annotated[str | None, _common_option("--kafka", "HOST:PORT", "Bootstrap servers of Kafka.")] = None,
    postgres: Annotated[str | None, _common_option("--postgres", "URL", "URL or DSN of the database.")] = None,
    json: Annotated[bool, _common_option("--json", None, "Print JSON, errors included.")] = False,
    log_level: Annotated[
        LogLevel | None, _common_option("--log-level", None, "Least severe log lines to print.")
    ] = None,
    log_format: Annotated[
        LogFormat | None, _common_option("--log-format", None, "Log format: console for people, json for programs.")
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
