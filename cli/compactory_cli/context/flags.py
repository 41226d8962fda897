"""The options that every command takes, before or after its name; those after it win.

The root command declares and lists them. The commands and groups of an `App` take them too, and do not list them.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from contextvars import ContextVar
from dataclasses import dataclass, field, fields
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperCommand, TyperGroup

from ..views.terminal import use_json

__all__ = [
    "COMMON_OPTIONS",
    "App",
    "Flags",
    "LogFormat",
    "LogLevel",
    "argument",
    "flag",
    "given_flags",
    "option",
    "root",
]

COMMON_OPTIONS = (
    "Common options: --config FILE, --kafka HOST:PORT, --postgres URL, --json, --log-level, --log-format; see"
    " compactory --help."
)
"""The last paragraph of each command's help, in place of six options."""

_PANEL = "Common options"


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


@dataclass(frozen=True, slots=True)
class Flags:
    """The common options; None and False mean not given."""

    config: Path | None = None
    kafka: str | None = None
    postgres: str | None = field(default=None, repr=False)
    json: bool = False
    log_level: LogLevel | None = None
    log_format: LogFormat | None = None


_flags: ContextVar[Flags] = ContextVar("flags")


def given_flags() -> Flags:
    """Return the common options of the command that runs."""
    return _flags.get()


def _print_version(is_requested: bool) -> None:
    if is_requested:
        from importlib.metadata import version

        print(f"compactory {version('compactory')}")
        raise typer.Exit


def _common(name: str, metavar: str | None, help: str) -> Any:  # noqa: A002
    return option(name, metavar, help, rich_help_panel=_PANEL)


def root(
    config: Annotated[Path | None, _common("--config", "FILE", "Settings file, instead of ./compactory.toml.")] = None,
    kafka: Annotated[str | None, _common("--kafka", "HOST:PORT", "Bootstrap servers of Kafka.")] = None,
    postgres: Annotated[str | None, _common("--postgres", "URL", "URL or DSN of the database.")] = None,
    json: Annotated[bool, _common("--json", None, "Print JSON, errors included.")] = False,
    log_level: Annotated[LogLevel | None, _common("--log-level", None, "Least severe log lines to print.")] = None,
    log_format: Annotated[LogFormat | None, _common("--log-format", None, "For people: console; or json.")] = None,
    _version: Annotated[
        bool, option("--version", help="Print the version.", callback=_print_version, is_eager=True)
    ] = False,
) -> None:
    """Set the common options that stand before the command's name."""
    _use(Flags(config, kafka, postgres, json, log_level, log_format))


def _use(flags: Flags) -> None:
    _flags.set(flags)
    use_json(flags.json)


class _TakesCommonOptions:
    """A command that takes the options of the root command's panel, beside its own."""

    def get_params(self, ctx: Any) -> list[Any]:
        """Return the parameters; the common ones are hidden from ``--help``."""
        common = [copy.copy(item) for item in ctx.find_root().command.params if item.rich_help_panel == _PANEL]
        for item in common:
            item.hidden = True
        return [*super().get_params(ctx), *common]  # type: ignore[misc]

    def invoke(self, ctx: Any) -> Any:
        """Run the command with its own parameters; set the common ones."""
        names = [item.name for item in fields(Flags)]
        own, preceding = {name: ctx.params.pop(name) for name in names}, given_flags()
        _use(Flags(**{name: own[name] or getattr(preceding, name) for name in names}))
        return super().invoke(ctx)  # type: ignore[misc]


class _Command(_TakesCommonOptions, TyperCommand):
    pass


class _Group(_TakesCommonOptions, TyperGroup):
    pass


class App(typer.Typer):
    """A group of commands that take the common options."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**{"cls": _Group, "no_args_is_help": True, **settings})

    def command(self, name: str | None = None, **settings: Any) -> Callable[[Any], Any]:
        """Return a decorator that adds a command."""
        return super().command(name, cls=_Command, epilog=COMMON_OPTIONS, **settings)
