"""The Prometheus metrics, from what workers and the HTTP side expose."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from tempfile import TemporaryDirectory
from types import SimpleNamespace
from typing import Any

from prometheus_client.parser import text_string_to_metric_families

from compactory import GlobalStore, Partition, RocksDB
from compactory.records import RebuildCause
from compactory.store_worker import StoreWorker
from compactory.worker import Worker
from compactory_api.ops.metrics import BUCKETS, Exposition, RequestMetrics
from compactory_connectors.jobs.status import Board as JobsBoard
from compactory_connectors.jobs.status import JobsWorker, TypeStatus
from compactory_connectors.outbox.status import Board, OutboxWorker, TopicStatus
from compactory_connectors.processors.status import Board as ProcessBoard
from compactory_connectors.processors.status import ProcessWorker
from compactory_connectors.sink.status import Board as SinkBoard
from compactory_connectors.sink.status import SinkWorker
from compactory_connectors.source.runtime.worker import SourceWorker
from compactory_connectors.source.status.status import SourceState, SourceStatus, TableStatus

from .markdown import cell, code, page, table

__all__ = ["page_text"]

_INTRO = """\
`compactory serve` and, with `--listen`, `compactory source run`, `outbox run`, `jobs run`, `sink run` and `process run`
answer `GET /metrics` in the Prometheus text format, or OpenMetrics where the scraper asks for it. `compactory_store_*`
and `compactory_http_*` are the server's, `compactory_source_*` the source's, `compactory_outbox_*` the relay's,
`compactory_jobs_*` the executor's, `compactory_sink_*` the sink's, `compactory_process_*` the processor's; these four
also have `compactory_paused`. A store that a service embeds shows its own through a `Listener`, see
[Kubernetes](../kubernetes.md#a-service-that-embeds-globalstore). Seconds are seconds. Beside these there are the usual
`process_*` and `python_*` metrics of the process."""

_ROUTE = """\
Its label `route` is a template such as `/v1/directories/{directory}/entries/{key}`, never a path that was asked for."""

_PARTITION = Partition("terminal_acquirer", 0)


class _Shown(GlobalStore):
    """A store that never runs and has one figure of each kind to show."""

    def positions(self) -> dict[Partition, int]:
        return {_PARTITION: 1}

    def lag(self) -> dict[Partition, int]:
        return {_PARTITION: 0}

    def ages(self) -> dict[Partition, float]:
        return {_PARTITION: 0.0}

    def rebuilds(self) -> dict[tuple[str, str], int]:
        return {(_PARTITION.topic, RebuildCause.RECREATED.value): 1}

    def figures(self) -> dict[tuple[str, str], float]:
        """What RocksDB says; memory says nothing."""
        with TemporaryDirectory() as folder:
            backend = RocksDB(folder)
            volume = backend.open(_PARTITION.topic)
            shared = {("", name): figure for name, figure in backend.figures().items()}
            figures = shared | {(_PARTITION.topic, name): figure for name, figure in volume.figures().items()}
            volume.close()
            backend.close()
        return figures

    @property
    def load_seconds(self) -> float | None:
        return 0.1


def _source() -> SourceWorker:
    table = TableStatus(table="public.terminal_acquirer", topic="terminal_acquirer")
    status = SourceStatus(connector="terminals", state=SourceState.RUNNING, detail=None, tables=(table,))
    source: Any = SimpleNamespace(status=lambda: status)
    return SourceWorker(source, lambda: True)


def _outbox() -> OutboxWorker:
    board = Board()
    topic = TopicStatus(
        topic="orders", locked_by="host-1-1-0", locked_seconds=0, error=False, retries=0, last_error=None,
        max_bytes=None, pending=0, more=False, oldest=0, failed=0, waiting=0, scheduled=0,
    )  # fmt: skip
    board.note(topics=[asdict(topic)])
    relay: Any = SimpleNamespace(board=board, alive=True)
    return OutboxWorker(relay)


def _jobs() -> JobsWorker:
    board = JobsBoard()
    board.ended("transport.notify", "succeeded", 0.1)
    found = TypeStatus(type="transport.notify", state="scheduled", jobs=1, oldest=0, executors=1)
    board.note(types=[asdict(found)])
    executor: Any = SimpleNamespace(board=board, alive=True)
    return JobsWorker(executor)


def _process() -> ProcessWorker:
    runner: Any = SimpleNamespace(board=ProcessBoard(lag={_PARTITION: 0}), processor=SimpleNamespace(name="register"))
    return ProcessWorker(runner)


def _sink() -> SinkWorker:
    part = Partition("payments", 0)
    board = SinkBoard(lag={part: 0}, positions={part: 0}, set_aside={part: 0})
    sink: Any = SimpleNamespace(board=board, alive=True, name="ledger")
    return SinkWorker(sink)


def page_text() -> str:
    """The page."""
    bounds = ", ".join(f"{bound:g}" for bound in BUCKETS)
    note = f"`compactory_http_request_seconds` counts in buckets up to these seconds: {bounds}. {_ROUTE}"
    parts = [table(["metric", "kind", "labels", "meaning"], _rows()), note]
    return page("Metrics", "`api/compactory_api` and the workers", _INTRO, *parts)


def _rows() -> Iterator[list[str]]:
    requests = RequestMetrics(lambda: {_PARTITION.topic: 1})
    requests.observe("route", 200, 0.001)
    workers: list[Worker] = [
        StoreWorker(_Shown("localhost:9092", ["terminal_acquirer"])),
        _source(),
        _outbox(),
        _jobs(),
        _sink(),
        _process(),
    ]
    declared = {metric.name: metric.labels for worker in workers for metric in worker.metrics()}
    text, _ = Exposition(workers, requests).render("")
    for family in text_string_to_metric_families(text.decode()):
        if not family.name.startswith("compactory_"):
            continue
        name = f"{family.name}_total" if family.type == "counter" else family.name
        seen = {name for sample in family.samples for name in sample.labels} - {"le"}
        labels = sorted(seen.union(declared.get(name, ())))  # not every figure is there at every moment
        yield [code(name), family.type, ", ".join(map(code, labels)), cell(family.documentation)]
