"""Runs sources in a thread each, until all are done, one fails, or a signal comes."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence

from compactory.errors import ConfigError
from compactory.kafka.client import Kafka
from compactory_connectors.source.config.connector import ConnectorConfig
from compactory_connectors.source.runtime.source import Source
from compactory_connectors.source.runtime.worker import SourceWorker
from compactory_connectors.source.status.status import SourceStatus

from ..context.worker import Health, stopping
from ..views.progress import ProgressLines, lines_of_loads
from ..views.tables import print_lines
from ..views.terminal import counted

__all__ = ["run_sources"]

_LOOK = 0.1  # seconds between two checks of the threads
_GRACE = 15.0  # seconds that a source may take to stop; what is not acknowledged by then is sent by the next one


def run_sources(
    connectors: Sequence[ConnectorConfig], kafka: Kafka, *, once: bool, create_topics: bool, health: Health
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
        workers = [SourceWorker(source, thread.is_alive) for source, thread in zip(sources, threads, strict=True)]
        with health(workers), ProgressLines() as lines:
            for thread in threads:
                thread.start()
            while not stop.wait(_LOOK) and any(thread.is_alive() for thread in threads):
                lines.show(lines_of_loads(source.status() for source in sources))
            deadline = time.monotonic() + _GRACE
            for thread in threads:
                thread.join(max(0.0, deadline - time.monotonic()))
    if failures and all(isinstance(error, ConfigError) for error in failures):
        raise ConfigError(problem for error in failures for problem in getattr(error, "problems", ()))
    if failures:
        raise failures[0]
    interrupted = once and stop.is_set()
    end = "done" if once and not interrupted else "stopped"
    statuses = [source.status() for source in sources]
    print_lines("connectors", statuses, lambda status: _source_line(status, end), document=_source_json)
    if interrupted:
        raise KeyboardInterrupt


def _run_source(source: Source, stop: threading.Event, once: bool, failures: list[BaseException]) -> None:
    try:
        source.run(stop, once=once)
    except BaseException as error:  # noqa: BLE001 - raised again by the main thread
        failures.append(error)
        stop.set()


def _source_json(status: SourceStatus) -> dict[str, object]:
    tables = [
        {"table": table.table, "topic": table.topic, "rows": table.rows_total, "polls": table.polls_total,
         "errors": table.errors_total, "adopted": table.adopted}
        for table in status.tables
    ]  # fmt: skip
    return {"connector": status.connector, "state": status.state.value.lower(), "tables": tables}


def _source_line(status: SourceStatus, end: str) -> str:
    tables = [f"{table.table} → {table.topic}: {counted(table.rows_total, 'record')}" for table in status.tables]
    return f"[bold]{status.connector}[/] {end}: {', '.join(tables) or 'nothing was sent'}"
