"""``compactory outbox``: sends published messages, retries those that Kafka refused, pauses topics."""

from __future__ import annotations

from contextlib import AbstractContextManager
from functools import partial
from threading import Event
from typing import TYPE_CHECKING, Annotated, Any

from compactory.errors import CompactoryError, Unreachable

from ..context.flags import App, LogLevel, argument, flag, option
from ..context.session import all_of, begin, connected, refuse
from ..context.worker import ListenOption, health_on, run_worker
from ..views.tables import Column, Table, bold, failed_columns, if_any, print_tables, red_if_any
from ..views.terminal import answer, number, print_count, seconds
from .operators import By, add_log, add_pausing, show_failed, table_of_pauses

if TYPE_CHECKING:
    import psycopg

    from compactory_connectors.outbox.status import TopicStatus

__all__ = ["app"]

app = App(name="outbox", help="Send the messages that transactions have published to Kafka.")

_TOPICS = (
    Column("topic", bold),
    Column("pending", None, lambda item: number(item.pending) + ("+" if item.more else ""), right=True),
    Column("oldest", None, lambda item: seconds(item.oldest) if item.pending else None),
    Column("failed", red_if_any, right=True),
    Column("waiting", number, right=True),
    Column("scheduled", number, right=True),
    Column("held by", if_any, "locked_by"),
    Column("detail", None, lambda item: f"{item.last_error or ''} (error {item.retries})" if item.error else ""),
)
_FAILED = failed_columns(Column("id", right=True), Column("topic"))

Ids = Annotated[list[int] | None, argument("[ID]…", "Ids of messages.")]
OneTopic = Annotated[str | None, option("--topic", "NAME", "Only messages of this topic.")]
All = Annotated[bool, flag("--all", "Messages of every topic.")]


@app.command("run")
def run_relay(
    threads: Annotated[int, option("--threads", "N", "Topics that are sent at the same time.", min=1)] = 2,
    topic: Annotated[list[str] | None, option("--topic", "NAME", "Only this topic; repeatable.")] = None,
    once: Annotated[bool, flag("--once", "Send what is committed by now, then end.")] = False,
    listen: ListenOption = None,
) -> None:
    """Send every committed message until SIGTERM or Ctrl-C. Any number of relays may run at the same time.

    Example: `compactory outbox run --threads 4 --listen 0.0.0.0:8082`
    """
    configuration = begin(LogLevel.INFO)
    postgres, kafka, health = all_of(
        configuration.postgres, configuration.kafka, partial(health_on, configuration, listen)
    )
    from compactory_connectors.outbox import OutboxRelay
    from compactory_connectors.outbox.status import OutboxWorker

    relay = OutboxRelay(postgres, kafka, threads, topics=topic or ())
    complete = True

    def wait(stop: Event) -> None:
        nonlocal complete
        complete = relay.drain(stop) if once else stop.wait()

    ended = run_worker(relay, OutboxWorker(relay), health, wait)
    sent = relay.board.picture()["sent"]
    totals = ", ".join(f"{name}: {number(count)}" for name, count in sorted(sent.items())) or "nothing was sent"
    answer({"sent": sent}, f"[bold]outbox[/] {'done' if once and complete else 'stopped'}: {totals}")
    if not ended:
        raise Unreachable("Kafka", "a batch did not end in time; another relay takes its topic over within 10 s")
    if not complete:
        raise KeyboardInterrupt
    if once:
        with _connect_to_outbox() as connection:
            statuses = _statuses(connection, topic)
        if unknown := sorted(set(topic or ()).difference(item.topic for item in statuses)):
            raise CompactoryError(f"nothing was ever published to {', '.join(unknown)}: is the name right?")
        refused = [item for item in statuses if item.failed]
        if refused:
            names = ", ".join(f"{item.failed} of {item.topic}" for item in refused)
            raise CompactoryError(f"Kafka has refused messages: {names}; compactory outbox failed shows why")


@app.command("status")
def show_outbox_status() -> None:
    """Show waiting messages, their age, the relay that sends them, and paused topics.

    Example: `compactory outbox status --json`
    """
    from compactory_connectors.postgres.pausing import paused

    with _connect_to_outbox() as connection:
        statuses, pauses = _statuses(connection), paused(connection, "outbox")
    topics = Table("topics", statuses, _TOPICS, "nothing was published yet, or no relay has run")
    print_tables(topics, table_of_pauses(pauses))


@app.command("failed")
def list_failed_messages(ids: Ids = None, topic: OneTopic = None) -> None:
    """List messages that Kafka refused, and messages that wait behind them. Exit code 1 if there are any.

    Example: `compactory outbox failed --topic order-created`
    """
    from compactory_connectors.outbox.operators import failed_messages

    with _connect_to_outbox() as connection:
        show_failed("messages", failed_messages(connection, topic, ids or ()), _FAILED)


def _add_message_act(verb: str, outcome: str, text: str, example: str) -> None:
    @app.command(verb, help=f"{text}\n\nExample: `compactory outbox {verb} {example}`")
    def change_messages(ids: Ids = None, topic: OneTopic = None, everything: All = False, by: By = None) -> None:
        from compactory_connectors.outbox import operators

        if sum((bool(ids), topic is not None, everything)) != 1:
            refuse("which messages? give ids, --topic NAME or --all")
        with _connect_to_outbox() as connection:
            count = getattr(operators, verb)(connection, topic, ids or (), by=by)
        print_count(count, "message", outcome)


_add_message_act(
    "retry",
    "will be sent",
    "Send refused messages again, and then the messages that wait behind them.",
    "--topic order-created",
)
_add_message_act(
    "drop",
    "dropped",
    "Delete messages that Kafka refused; the messages that wait behind them are sent.\n\n"
    "With --topic also the messages that wait for a topic that Kafka does not have.",
    "42",
)


def _statuses(connection: psycopg.Connection[Any], topics: list[str] | None = None) -> list[TopicStatus]:
    from compactory_connectors.outbox.status import topic_statuses

    return [item for item in topic_statuses(connection) if not topics or item.topic in topics]


def _connect_to_outbox() -> AbstractContextManager[psycopg.Connection[Any]]:
    from compactory_connectors.outbox.statements import open_outbox

    return connected(lambda conninfo, purpose: open_outbox(conninfo, purpose)[0])


add_pausing(app, _connect_to_outbox, "topic", "its messages wait, in their order.", "order-created")
add_log(app, _connect_to_outbox, "the outbox")
