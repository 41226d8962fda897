"""The commands, from the Typer application."""

from __future__ import annotations

from collections.abc import Iterator
from enum import Enum
from typing import Any, Literal, get_args, get_origin

import typer.main

from compactory_cli.context import failure
from compactory_cli.main import app

from .markdown import cell, code, page, table, unmarked

__all__ = ["page_text"]

_INTRO = """\
`compactory --help` and `compactory COMMAND --help` say the same. Results go to stdout, everything else to stderr;
`--json` prints one JSON value for programs, errors included. Environment variables and `compactory.toml` are in
[configuration](configuration.md)."""

_COMMON = "Every command takes them, before or after its name; those after it win."


def page_text() -> str:
    """The page."""
    root = typer.main.get_command(app)
    common = [item for item in root.params if item.rich_help_panel == "Common options"]  # type: ignore[attr-defined]
    commands = list(_commands(root, "compactory"))
    links = table(["command", "effect"], ([f"[`{path}`](#{_anchor(path)})", _first(item)] for path, item in commands))
    codes = table(["code", "meaning"], _exit_codes())
    parts = ["## Commands", links, "## Common options", _COMMON, _options(common), "## Exit codes", codes]
    return page("Command line", "the Typer application in `cli/`", _INTRO, *parts, *map(_section, commands))


def _commands(group: Any, path: str) -> Iterator[tuple[str, Any]]:
    for name, item in group.commands.items():
        if not hasattr(item, "commands") or item.invoke_without_command:
            yield f"{path} {name}", item
        if hasattr(item, "commands"):
            yield from _commands(item, f"{path} {name}")


def _section(command: tuple[str, Any]) -> str:
    path, item = command
    arguments = [each for each in item.params if "Argument" in type(each).__name__]
    options = [each for each in item.params if each not in arguments and each.name != "help"]
    usage = " ".join([path, *(_metavar(each) for each in arguments), *(["[OPTIONS]"] if options else [])])
    parts = [f"## {path}", f"```text\n{usage}\n```", _help(item)]
    parts += [_arguments(arguments)] if arguments else []
    parts += [_options(options)] if options else []
    return "\n\n".join(parts)


def _arguments(arguments: list[Any]) -> str:
    return table(["argument", "meaning"], ([code(each.metavar), cell(each.help or "")] for each in arguments))


def _options(options: list[Any]) -> str:
    rows = ([_spelled(each), cell(each.help or ""), _default(each)] for each in options)
    return table(["option", "meaning", "default"], rows)


def _spelled(option: Any) -> str:
    values = _choices(option) or option.metavar
    return code(option.opts[0] + (f" {values}" if values and not option.is_flag else ""))


def _choices(option: Any) -> str | None:
    kind = option.type_descriptor.annotation
    if isinstance(kind, type) and issubclass(kind, Enum):
        return "|".join(item.value for item in kind)
    return "|".join(get_args(kind)) if get_origin(kind) is Literal else None


def _default(option: Any) -> str:
    if option.required:
        return "required"
    return "" if option.default is None or isinstance(option.default, bool) else code(option.default)


def _metavar(argument: Any) -> str:
    text = str(argument.metavar)
    return text if argument.required or text.startswith("[") else f"[{text}]"


def _help(command: Any) -> str:
    return unmarked(command.help or "").strip()


def _first(command: Any) -> str:
    return cell((command.help or "").split("\n\n")[0])


def _anchor(path: str) -> str:
    return path.replace(" ", "-")


def _exit_codes() -> list[list[str]]:
    meanings = {
        0: "done",
        failure.DIFFERENT: "checked and found different, not found, or a step failed",
        failure.USAGE: "bad usage or configuration; every problem is named",
        failure.UNREACHABLE: "an outside system was not reached in time",
        failure.LEASE_LOST: "another source took over this connector, or runs it",
        130: "ended by Ctrl-C; with `--once` also by SIGTERM, before it was done",
    }
    return [[str(number), text] for number, text in meanings.items()]
