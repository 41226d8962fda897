"""The stages of a job on Spark, for a person who watches it."""

from __future__ import annotations

__all__ = ["Stages"]


class Stages:
    """Nobody watches; whoever does overrides both methods. They are called in turns, by the job's thread."""

    def begin(self, stage: str, rows: int | None) -> None:
        """A stage begins; ``rows`` is how many it will handle, None where nobody knows yet."""

    def end(self) -> None:
        """The stage is over."""
