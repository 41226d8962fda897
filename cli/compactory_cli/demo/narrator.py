"""Prints each step of the demo with its duration: lines for people, a JSON object a line for programs."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

from ..views.terminal import output, print_json, say, seconds

__all__ = ["Narrator", "Step"]


@dataclass
class Step:
    """A running step; its code sets ``result``, and ``seconds`` if it measures them itself."""

    name: str
    result: str = ""
    seconds: float | None = None


class Narrator:
    """Prints to stdout. Owned by one thread."""

    def __init__(self, *, as_json: bool) -> None:
        self._as_json = as_json

    def say(self, text: str = "") -> None:
        """Print a line of markup for people."""
        if not self._as_json:
            say(text)

    def tell(self, document: Mapping[str, Any], text: str | None) -> None:
        """Print the document for programs, or the text (if any) for people."""
        if self._as_json:
            print_json(document)
        elif text is not None:
            say(text)

    @contextmanager
    def step(self, name: str, doing: str) -> Iterator[Step]:
        """Show ``doing`` while the block runs, then the step's result and duration, also if it fails."""
        step = Step(name)
        began = time.perf_counter()
        failure: BaseException | None = None
        try:
            with nullcontext() if self._as_json else output().status(f"{doing} …"):
                yield step
        except BaseException as error:
            failure = error
            raise
        finally:
            step_seconds = step.seconds if step.seconds is not None else time.perf_counter() - began
            if not isinstance(failure, KeyboardInterrupt):
                self._print(step, step_seconds, ok=failure is None)

    def _print(self, step: Step, step_seconds: float, *, ok: bool) -> None:
        mark = "[green]✓[/]" if ok else "[red]✗[/]"
        self.tell(
            {"step": step.name, "ok": ok, "seconds": round(step_seconds, 4), "result": step.result},
            f" {mark} [bold]{step.name:<9}[/] {seconds(step_seconds):>8}   {step.result}",
        )
