"""Exit codes, and errors on stderr for people and programs, without traceback and secrets."""

from __future__ import annotations

import errno
import json
import sys

import typer

from compactory.errors import (
    BackendLocked,
    CompactoryError,
    ConfigError,
    LeaseLost,
    NotReady,
    StartTimeout,
    StoreFailed,
    UnknownDirectory,
    Unreachable,
    WaitTimeout,
)

from ..views.terminal import error_output, escape

__all__ = ["StepFailed", "exit_code_of", "report"]

DIFFERENT = 1
USAGE = 2
UNREACHABLE = 3
LEASE_LOST = 4

_CODES: tuple[tuple[type[BaseException], int], ...] = (
    (typer.TyperException, USAGE),
    (ConfigError, USAGE),
    (UnknownDirectory, USAGE),
    (Unreachable, UNREACHABLE),
    (StartTimeout, UNREACHABLE),
    (WaitTimeout, UNREACHABLE),
    (NotReady, UNREACHABLE),
    (LeaseLost, LEASE_LOST),
    (BackendLocked, LEASE_LOST),
    (CompactoryError, DIFFERENT),
)

_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


class StepFailed(CompactoryError):
    """A command ran and failed: something was not found or not done (exit code 1)."""


def exit_code_of(error: BaseException) -> int | None:
    """Return the exit code of an error; of a failed store's cause. None for a defect of Compactory."""
    if isinstance(error, StoreFailed) and isinstance(error.cause, CompactoryError):
        return exit_code_of(error.cause)
    if isinstance(error, OSError) and error.errno in _FULL:
        return DIFFERENT
    return next((code for kind, code in _CODES if isinstance(error, kind)), None)


def report(error: Exception, code: int, *, as_json: bool) -> int:
    """Print an error on stderr and return its exit code."""
    kind, problems = type(error).__name__, _problems_of_error(error)
    if as_json:
        fields = {name: getattr(error, name) for name in ("system", "blocking") if hasattr(error, name)}
        answer = {"error": kind, "message": "\n".join(problems), "problems": problems, "exit_code": code, **fields}
        print(json.dumps(answer, ensure_ascii=False, default=str), file=sys.stderr)
        return code
    if kind == "NoArgsIsHelpError":
        print(problems[0], file=sys.stderr)
        return code
    _print_problems(problems)
    if context := getattr(error, "ctx", None):
        error_output().print(context.get_usage(), style="dim", highlight=False, markup=False)
    return code


def _problems_of_error(error: Exception) -> list[str]:
    if isinstance(error, ConfigError):
        return error.problems
    if isinstance(error, typer.TyperException):
        return [error.format_message().replace(": Value error, ", ": ")]  # pydantic's prefix, which says nothing
    if isinstance(error, OSError) and not isinstance(error, CompactoryError):
        return [f"{error.filename or 'the output'} can't be written: {error.strerror}; make room"]
    return [str(error)]


def _print_problems(problems: list[str]) -> None:
    head = f"{len(problems)} problems" if len(problems) > 1 else escape(problems[0])
    error_output().print(f"[bold red]error:[/] {head}", highlight=False, soft_wrap=True)
    for problem in problems if len(problems) > 1 else ():
        error_output().print(f"  [red]•[/] {escape(problem)}", highlight=False, soft_wrap=True)
