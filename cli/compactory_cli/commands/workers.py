"""Runs sources in a thread each, until all are done, one fails, or a signal comes."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

from compactory.errors import ConfigError
from compactory.kafka.client import Kafka
from compactory_connectors.source.config.connector import ConnectorConfig
from compactory_connectors.source.runtime.source import Source
from compactory_connectors.source.runtime.worker import SourceWorker
from compactory_connectors.source.status.status import SourceStatus

from ..context.worker import Health, stopping
from ..views.progress import ProgressLines, lines_of_loads
from ..views.terminal import counted, print_json, say, wants_json

__all__ = ["run_sources"]

_LOOK = 0.1  # seconds between two checks of the threads
_GRACE = 15.0  # seconds that a source may take to stop; what is not acknowledged by then is sent by the next one


def run_sources(
    connectors: Sequence[ConnectorConfig],
    kafka: Kafka,
    *,
    once: bool,
    create_topics: bool,
    health: Health,
) -> None:
    """Run every connector and print what was sent. Raises the first error of a source.

    With ``once`` it raises KeyboardInterrupt if a signal has stopped it before all was published.

    ``health`` serves probes, metrics and status while the sources run.
    """
    sources = [Source(connector, kafka, create_topics=create_topics) for connector in connectors]
    failures: list[BaseException] = []
    with stopping() as stop:
        threads = [
            threading.Thread(target=_run_source, args=(source, stop, once, failures), daemon=True) for source in sources
        ]
        shown = [SourceWorker(source, thread.is_alive) for source, thread in zip(sources, threads, strict=True)]
        with health(shown):
            for thread in threads:
                thread.start()
            with ProgressLines() as lines:
                _join(threads, stop, lambda: lines.show(lines_of_loads(source.status() for source in sources)))
    _raise(failures)
    interrupted = once and stop.is_set()
    statuses = [source.status() for source in sources]
    if wants_json():
        print_json({"connectors": [_source_json(status) for status in statuses]})
    else:
        for status in statuses:
            say(_line(status, "done" if once and not interrupted else "stopped"))
    if interrupted:
        raise KeyboardInterrupt


def _join(threads: Sequence[threading.Thread], stop: threading.Event, look: Callable[[], None]) -> None:
    """Wait for the sources; after the stop signal, for 15 seconds at most.

    ``look`` is called every 0.1 seconds.
    """
    while not stop.wait(_LOOK) and any(thread.is_alive() for thread in threads):
        look()
    deadline = time.monotonic() + _GRACE
    for thread in threads:
        thread.join(max(0.0, deadline - time.monotonic()))


def _run_source(source: Source, stop: threading.Event, once: bool, failures: list[BaseException]) -> None:
    try:
        source.run(stop, once=once)
    except BaseException as error:  # noqa: BLE001 - raised again by the main thread
        failures.append(error)
        stop.set()


def _raise(failures: list[BaseException]) -> None:
    if not failures:
        return
    if all(isinstance(error, ConfigError) for error in failures):
        raise ConfigError(problem for error in failures if isinstance(error, ConfigError) for problem in error.problems)
    raise failures[0]


def _source_json(status: SourceStatus) -> dict[str, Any]:
    tables = [
        {"table": table.table, "topic": table.topic, "rows": table.rows_total, "polls": table.polls_total,
         "errors": table.errors_total, "adopted": table.adopted}
        for table in status.tables
    ]  # fmt: skip
    return {"connector": status.connector, "state": status.state.value.lower(), "tables": tables}


def _line(status: SourceStatus, end: str) -> str:
    tables = ", ".join(
        f"{table.table} → {table.topic}: {counted(table.rows_total, 'record')}" for table in status.tables
    )
    return f"[bold]{status.connector}[/] {end}: {tables or 'nothing was sent'}"
