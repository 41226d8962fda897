"""Flags that every command takes, before or after the command's name; those after it win.

``@command`` adds them to a function whose first parameter is ``flags: Flags``, so that each command declares only its
own parameters. Options that several commands share are the fields of a dataclass, as the common ones are.
"""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, fields, is_dataclass
from enum import StrEnum
from functools import wraps
from pathlib import Path
from typing import Annotated, Any, Concatenate, ParamSpec, get_args

import typer

__all__ = [
    "COMMON_OPTIONS",
    "Flags",
    "LogFormat",
    "LogLevel",
    "argument",
    "command",
    "flag",
    "option",
    "root_command",
]

P = ParamSpec("P")

COMMON_OPTIONS = (
    "Common options: --config FILE, --kafka HOST:PORT, --postgres URL, --json, --log-level, --log-format; see"
    " compactory --help."
)
"""The last paragraph of each command's help, in place of six options."""


class LogLevel(StrEnum):
    """The least severe log lines that are printed."""

    DEBUG = "debug"
    INFO = "info"
    WARNING = "warning"
    ERROR = "error"


class LogFormat(StrEnum):
    """Format of log lines: text for people, or a JSON object a line for programs."""

    CONSOLE = "console"
    JSON = "json"


def option(name: str, metavar: str | None = None, help: str = "", **settings: Any) -> Any:  # noqa: A002 (as typer calls it)
    """Return an option with a value."""
    return typer.Option(name, metavar=metavar, help=help, **settings)


def flag(name: str, help: str, *short_names: str) -> Any:  # noqa: A002
    """Return an option without a value."""
    return typer.Option(name, *short_names, help=help)


def argument(metavar: str, help: str) -> Any:  # noqa: A002
    """Return an argument whose default `--help` does not show."""
    return typer.Argument(metavar=metavar, help=help, show_default=False)


def _common(name: str, metavar: str | None, text: str) -> Any:
    return option(name, metavar, text, rich_help_panel="Common options")


@dataclass(frozen=True, slots=True, kw_only=True)
class Flags:
    """The common flags; None and False mean not given."""

    config: Annotated[Path | None, _common("--config", "FILE", "Settings file, instead of ./compactory.toml.")] = None
    kafka: Annotated[str | None, _common("--kafka", "HOST:PORT", "Bootstrap servers of Kafka.")] = None
    postgres: Annotated[str | None, _common("--postgres", "URL", "URL or DSN of the database.")] = field(
        default=None, repr=False
    )
    json: Annotated[bool, _common("--json", None, "Print JSON, errors included.")] = False
    log_level: Annotated[LogLevel | None, _common("--log-level", None, "Least severe log lines to print.")] = None
    log_format: Annotated[
        LogFormat | None, _common("--log-format", None, "Log format: console for people, json for programs.")
    ] = None

    def over(self, defaults: Flags) -> Flags:
        """Return these flags, with ``defaults`` for those that are not given."""
        return Flags(**{item.name: getattr(self, item.name) or getattr(defaults, item.name) for item in fields(Flags)})


def command(function: Callable[Concatenate[Flags, P], None]) -> Callable[..., None]:
    """Give a command its options: its parameters, and the fields of parameters that are dataclasses.

    A parameter named ``context`` gets typer's context. ``--help`` names the common options in one paragraph.
    """
    return _with_options(function, hidden=True)


def root_command(function: Callable[Concatenate[Flags, P], None]) -> Callable[..., None]:
    """Like `command`; ``--help`` lists the common options."""
    return _with_options(function, hidden=False)


def _with_options(function: Callable[Concatenate[Flags, P], None], *, hidden: bool) -> Callable[..., None]:
    declared = inspect.signature(function, eval_str=True).parameters
    flags, *own = declared.values()
    groups: dict[str, Any] = {item.name: item.annotation for item in (*own, flags) if is_dataclass(item.annotation)}
    common = [_unlisted(parameter) for parameter in _options(flags)] if hidden else _options(flags)
    options = [parameter for item in own for parameter in _options(item) if parameter.name != "context"]
    context = inspect.Parameter("context", inspect.Parameter.KEYWORD_ONLY, annotation=typer.Context)
    parameters = [context, *(item.replace(kind=inspect.Parameter.KEYWORD_ONLY) for item in (*options, *common))]

    @wraps(function)
    def with_flags(**values: Any) -> None:
        for name, group in groups.items():
            values[name] = group(**{item.name: values.pop(item.name) for item in fields(group)})
        ctx: typer.Context = values["context"] if "context" in declared else values.pop("context")
        ctx.obj = values.pop(flags.name).over(ctx.obj or Flags())
        function(ctx.obj, **values)  # type: ignore[call-arg]  # typer passes what the signature below says

    if hidden:
        with_flags.__doc__ = f"{inspect.cleandoc(function.__doc__ or '')}\n\n{COMMON_OPTIONS}"
    with_flags.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    with_flags.__annotations__ = {item.name: item.annotation for item in parameters}
    return with_flags


def _options(parameter: inspect.Parameter) -> Iterable[inspect.Parameter]:
    group: Any = parameter.annotation
    if not is_dataclass(group):
        return [parameter]
    return inspect.signature(group, eval_str=True).parameters.values()  # type: ignore[arg-type]  # it is a class


def _unlisted(parameter: inspect.Parameter) -> inspect.Parameter:
    """Return an option that ``--help`` does not list."""
    kind, declared = get_args(parameter.annotation)
    declared = copy.copy(declared)
    declared.hidden = True
    return parameter.replace(annotation=Annotated[kind, declared])
