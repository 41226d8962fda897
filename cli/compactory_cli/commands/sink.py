"""``compactory sink``: writes topics to tables, shows offsets, and retries records that were set aside."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from compactory.errors import CompactoryError

from ..context.flags import App, LogLevel, argument, flag, option
from ..context.session import Providers, all_of, begin, connected, provider_files, refuse
from ..context.worker import ListenOption, either, health_on, run_worker
from ..views.tables import Column, Table, bold, failed_columns, print_tables, red_if_any, time_text
from ..views.terminal import answer, counted, number, print_count, warn
from .operators import By, add_log, add_pausing, show_failed, table_of_pauses

if TYPE_CHECKING:
    import psycopg

__all__ = ["app"]

app = App(name="sink", help="Write topics to Postgres tables, each record once.")
offsets_app = App(name="offsets", help="Show a sink's offsets, or set one.")
app.add_typer(offsets_app)

_PARTITIONS = (
    Column("sink", bold),
    Column("topic"),
    Column("partition", right=True),
    Column("offset", right=True),
    Column("lag", number, right=True),
    Column("failed", red_if_any, right=True),
    Column("waiting", number, right=True),
    Column("moved", time_text, "updated_at"),
)
_OFFSETS = (Column("topic"), Column("partition", right=True), Column("offset", right=True))
_FAILED = failed_columns(Column("topic"), Column("partition", right=True), Column("offset", right=True))

Sink = Annotated[str, argument("SINK", "The sink's name.")]
OneTopic = Annotated[str | None, option("--topic", "NAME", "Only records of this topic.")]
OnePartition = Annotated[int | None, option("--partition", "N", "Only records of this partition.")]
OneOffset = Annotated[int | None, option("--offset", "N", "Only the record at this offset.")]


@app.command("run")
def run_sink(
    sink: Annotated[Path, argument("SINK.json", "A JDBC sink connector's configuration.")],
    provider: Providers = None,
    polling_ttl: Annotated[
        float, option("--polling-ttl", "SECONDS", "/livez fails after this time without a poll.")
    ] = 300.0,
    consuming_ttl: Annotated[float, option("--consuming-ttl", "SECONDS", "/livez fails if a batch is slower.")] = 60.0,
    listen: ListenOption = None,
) -> None:
    """Write records until SIGTERM or Ctrl-C. Processes of one sink share its partitions.

    Example: `compactory sink run accounts.json --kafka localhost:9092`
    """
    configuration = begin(LogLevel.INFO)
    from compactory_connectors.sink.into_table.sink_config import load_sink
    from compactory_connectors.sink.into_table.writer import table_sink
    from compactory_connectors.sink.status import SinkWorker

    config, kafka, health = all_of(
        lambda: load_sink(sink, provider_files(provider or ())),
        configuration.kafka,
        partial(health_on, configuration, listen),
    )
    for note in config.notes:
        warn(note)
    running = table_sink(config, kafka)
    worker = SinkWorker(running, polling_ttl=polling_ttl, consuming_ttl=consuming_ttl)
    run_worker(running, worker, health, either(running.wait))
    rows, failures = (running.board.picture()[name] for name in ("rows", "failed"))
    message = f"[bold]{config.name}[/] stopped: {counted(rows, 'record')}"
    answer({"sink": config.name, "rows": rows, "failed": failures}, message)


@app.command("status")
def show_sink_status(
    sink: Annotated[str | None, argument("[SINK]", "The name of the sink; default: all.")] = None,
) -> None:
    """Show each partition: the sink's offset, its lag, and records set aside; and paused sinks.

    Example: `compactory sink status accounts`
    """
    from compactory.records import Partition
    from compactory_connectors.postgres.pausing import paused
    from compactory_connectors.sink.statements import partition_offsets

    configuration = begin()
    with _connect_to_sink() as connection:
        offsets = partition_offsets(connection, sink)
        pauses = [item for item in paused(connection, "sink") if sink in (None, item.name)]
    ends: dict[Partition, int] = {}
    try:
        ends = configuration.kafka().stable_offsets({Partition(item.topic, item.partition) for item in offsets})
    except CompactoryError as error:
        warn(f"no lag: {error}")
    rows = [asdict(item) | {"lag": _lag(ends, Partition(item.topic, item.partition), item.offset)} for item in offsets]
    partitions = Table("partitions", rows, _PARTITIONS, "no sink has written to this database yet")
    print_tables(partitions, table_of_pauses(pauses))


def _lag(ends: Any, partition: Any, offset: int | None) -> int | None:
    return max(0, ends[partition] - offset) if offset is not None and partition in ends else None


@offsets_app.command("show")
def show_sink_offsets(sink: Sink) -> None:
    """Show the next offset of each partition, as the database has it.

    Example: `compactory sink offsets show accounts`
    """
    from compactory_connectors.sink.statements import partition_offsets

    with _connect_to_sink() as connection:
        print_tables(Table("partitions", partition_offsets(connection, sink), _OFFSETS))


@offsets_app.command("set")
def set_sink_offset(
    sink: Sink,
    topic: Annotated[str, argument("TOPIC", "A topic of the sink.")],
    partition: Annotated[int, argument("PARTITION", "A partition of the topic.")],
    offset: Annotated[str, argument("OFFSET", "A number, earliest or latest.")],
    by: By = None,
) -> None:
    """Continue a sink at another offset; a running sink seeks at once. Records before it are not applied.

    Example: `compactory sink offsets set accounts accounts 0 earliest`
    """
    from compactory.records import Partition
    from compactory_connectors.sink.operators import set_position

    kafka = begin().kafka()
    with _connect_to_sink() as connection:
        chosen = set_position(connection, kafka, sink, Partition(topic, partition), offset, by=by)
    message = f"[green]✓[/] {sink} continues at offset {chosen} of {topic}-{partition}"
    answer({"sink": sink, "topic": topic, "partition": partition, "offset": chosen}, message)


@app.command("failed")
def list_failed_records(
    sink: Sink, topic: OneTopic = None, partition: OnePartition = None, offset: OneOffset = None
) -> None:
    """List records that were set aside, and records that wait behind them. Exit code 1 if there are any.

    Example: `compactory sink failed accounts`
    """
    from compactory_connectors.sink.operators import failed_records

    with _connect_to_sink(sink) as connection:
        show_failed("records", failed_records(connection, sink, topic, partition, offset), _FAILED)


def _add_record_act(verb: str, outcome: str, text: str, example: str) -> None:
    @app.command(verb, help=f"{text}\n\nExample: `compactory sink {verb} accounts {example}`")
    def change_records(
        sink: Sink,
        topic: OneTopic = None,
        partition: OnePartition = None,
        offset: OneOffset = None,
        everything: Annotated[bool, flag("--all", "All records of the sink that were set aside.")] = False,
        by: By = None,
    ) -> None:
        from compactory_connectors.sink import operators

        is_selected = (topic, partition, offset) != (None, None, None)
        with _connect_to_sink(sink) as connection:
            if is_selected == everything:
                refuse("which records? give --topic, --partition or --offset, or --all")
            count = getattr(operators, verb)(connection, sink, topic, partition, offset, by=by)
        if is_selected and not count:
            raise CompactoryError(f"no such record is set aside: compactory sink failed {sink} lists them")
        print_count(count, "record", outcome)


_add_record_act(
    "retry",
    "will be tried again",
    "Try records that were set aside again, in the running sink, and those that wait behind them.",
    "--topic accounts",
)
_add_record_act(
    "drop",
    "dropped",
    "Drop records that were set aside; the records that wait behind them are applied.",
    "--topic accounts --partition 0 --offset 42",
)


@contextmanager
def _connect_to_sink(sink: str | None = None) -> Iterator[psycopg.Connection[Any]]:
    """Yield a connection to the database. Raises ConfigError if no sink of this name has written to it."""
    from compactory_connectors.sink.statements import open_sink, partition_offsets

    with connected(open_sink) as connection:
        if sink is not None:
            partition_offsets(connection, sink)
        yield connection


add_pausing(app, _connect_to_sink, "sink", "its processes keep their partitions and apply nothing.", "accounts")
add_log(app, _connect_to_sink, "sinks")
