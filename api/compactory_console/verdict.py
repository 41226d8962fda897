"""The verdict on a process, a worker or a directory: a level, a word, a sentence, and the runbook that helps."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Any

__all__ = ["Level", "Verdict", "verdict_of_directory", "verdict_of_server", "verdict_of_worker"]


class Level(StrEnum):
    """Good: nothing to do. Warning: look at it. Bad: somebody has to act."""

    GOOD = "good"
    WARNING = "warning"
    BAD = "bad"


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """``word`` is the state; ``sentence`` says what is wrong; ``runbook`` is the page's name, or None."""

    level: Level
    word: str
    sentence: str = ""
    runbook: str | None = None


def verdict_of_server(status: dict[str, Any] | None, error: str | None) -> Verdict:
    """Return the verdict on a process. ``error``: why it did not answer."""
    if status is None and error is None:
        return Verdict(level=Level.WARNING, word="asked", sentence="The process has not answered yet.")
    if status is None:
        return Verdict(level=Level.BAD, word="not reached", sentence=f"{error}.")
    if not status["live"]:
        return Verdict(
            level=Level.BAD, word="not live", sentence="A part of the process has died: restart it.",
            runbook="CompactoryStoreNotLive",
        )  # fmt: skip
    if not status["ready"]:
        return Verdict(level=Level.WARNING, word="not ready", sentence="The process is not ready.")
    return Verdict(level=Level.GOOD, word="ready")


def verdict_of_worker(worker: dict[str, Any]) -> Verdict:
    """Return the verdict on a worker."""
    if worker.get("failure"):
        return _bad("failed", f"It ended with {worker['failure']}.", "CompactoryStoreNotLive")
    if not worker.get("live", True):
        return _bad("not live", _detail(worker) or "It has died: restart the process.", None)
    if "connector" in worker:
        return _verdict_of_source(worker)
    if "directories" in worker:
        return _verdict_of_store(worker)
    if detail := _detail(worker):
        return _bad("waiting", detail, None)
    if worker.get("paused"):
        names = ", ".join(sorted(_name(item) for item in worker["paused"]))
        return Verdict(level=Level.WARNING, word="paused", sentence=f"An operator has paused {names}.")
    if failed := _failed(worker):
        return Verdict(level=Level.WARNING, word="running", sentence=f"{failed:,} set aside: they need somebody.")
    if not worker.get("ready", True):
        return Verdict(level=Level.WARNING, word="not ready", sentence="It is not connected yet.")
    return Verdict(level=Level.GOOD, word="running")


def verdict_of_directory(directory: dict[str, Any]) -> Verdict:
    """Return the verdict on a directory."""
    if directory["unusable"]:
        return _bad(directory["state"], directory["unusable"], "CompactoryStoreBadRecords")
    if directory["stale"]:
        return Verdict(
            level=Level.WARNING, word=directory["state"], sentence=directory["stale"], runbook="CompactoryStoreStale"
        )
    if directory["state"] != "ready":
        return Verdict(level=Level.WARNING, word=directory["state"], runbook="CompactoryStoreNotReady")
    if directory["bad_records"]:
        sentence = f"{directory['bad_records']:,} records are bad."
        return Verdict(level=Level.WARNING, word="ready", sentence=sentence, runbook="CompactoryStoreBadRecords")
    return Verdict(level=Level.GOOD, word="ready")


def _verdict_of_store(worker: dict[str, Any]) -> Verdict:
    state = worker["state"]
    if state == "stale":
        sentence = "; ".join(f"{topic}: {why}" for topic, why in (worker["stale"] or {}).items())
        return Verdict(level=Level.WARNING, word=state, sentence=sentence, runbook="CompactoryStoreStale")
    if state != "ready":
        return Verdict(level=Level.WARNING, word=state, sentence="It reads topics.", runbook="CompactoryStoreNotReady")
    if worker["bad_records"] and any(directory["bad_records"] for directory in worker["directories"] or ()):
        return Verdict(
            level=Level.WARNING, word=state, sentence="Some records are bad.", runbook="CompactoryStoreBadRecords"
        )
    return Verdict(level=Level.GOOD, word=state)


def _verdict_of_source(worker: dict[str, Any]) -> Verdict:
    state = worker["state"].lower()
    tables = worker.get("tables") or ()
    if state == "failed":
        return _bad(state, _detail(worker), "CompactorySourceNotActive")
    if worker.get("target") == "PAUSED":
        return Verdict(
            level=Level.WARNING, word="paused", sentence="An operator has paused it.", runbook="CompactorySourcePaused"
        )
    for table in tables:
        if table["state"] == "FAILED":
            return _bad(state, f"Table {table['table']} has failed: {table['detail']}", "CompactorySourceTableFailed")
        if table["removal"]:
            return _bad(
                state, f"Table {table['table']}: a removal or a change is held.", "CompactorySourceRemovalsStopped"
            )
        if table["detail"]:
            return Verdict(
                level=Level.WARNING, word=state, sentence=f"Table {table['table']}: {table['detail']}",
                runbook="CompactorySourceErrors",
            )  # fmt: skip
    if detail := _detail(worker):
        return Verdict(level=Level.WARNING, word=state, sentence=detail, runbook="CompactorySourceErrors")
    return Verdict(level=Level.GOOD, word=state)


def _bad(word: str, sentence: str, runbook: str | None) -> Verdict:
    return Verdict(level=Level.BAD, word=word, sentence=sentence, runbook=runbook)


def _detail(worker: dict[str, Any]) -> str:
    return " ".join(str(worker.get("detail") or "").split())


def _name(item: Any) -> str:
    return str(item.get("name", item)) if isinstance(item, dict) else str(item)


def _failed(worker: dict[str, Any]) -> int:
    """Return how many messages, jobs, records or events of the worker were set aside."""
    topics = worker.get("topics")
    if isinstance(topics, list):
        return sum(topic.get("failed") or 0 for topic in topics)
    types = worker.get("types")
    if isinstance(types, list):
        return sum(item["jobs"] for item in types if item.get("state") == "failed")
    partitions = [part for part in worker.get("partitions") or () if isinstance(part, dict)]
    return int(worker.get("set_aside") or sum(part.get("set_aside") or 0 for part in partitions))
