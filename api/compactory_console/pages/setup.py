"""The pages of the set-up, with the state of each prerequisite and its remedy, and of the operator log."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import psycopg
from starlette.responses import Response

from compactory.errors import CompactoryError, ConfigError
from compactory.kafka.client import Kafka
from compactory_connectors.jobs.statements import open_jobs
from compactory_connectors.outbox.statements import open_outbox
from compactory_connectors.postgres.operator_log import LogLine, operator_log
from compactory_connectors.processors import operators as processors
from compactory_connectors.schema import status
from compactory_connectors.sink.statements import open_sink
from compactory_connectors.source.config.connector import ConnectorConfig
from compactory_connectors.source.operations.preview import preview_connector

from ..call import Call
from ..verdict import Level
from .processors import known_processors

__all__ = ["log_page", "setup_page"]

_LOG_LINES = 200
_CLOCK_SECONDS = 2.0  # by which the clocks of Postgres and of the console may differ


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """A prerequisite, with its state and its remedy."""

    name: str
    level: Level
    state: str
    remedy: str = ""


async def setup_page(call: Call) -> Response:
    """Return every prerequisite."""
    call.session.demand_read()
    operators = call.parts.operators
    checks = [*_processes(call)]
    try:
        checks += await operators.in_database(lambda connection: [*_database(connection)])
        parts: dict[str, Callable[..., Any]] = {
            "outbox": lambda *place: open_outbox(*place)[0], "jobs": open_jobs, "sink": open_sink
        }  # fmt: skip
        for part, connect in parts.items():
            checks.append(await _part(call, part, connect))
    except CompactoryError as error:
        checks.append(Check(name="Postgres", level=Level.BAD, state=str(error)))
    for name, connector in call.parts.options.connectors.items():
        checks += await _connector(call, name, connector)
    topics = {directory["topic"] for server in call.parts.servers.processes for directory in server.directories}
    try:
        checks += await operators.in_kafka(lambda kafka: [*_topics(kafka, sorted(topics))])
    except CompactoryError as error:
        checks.append(Check(name="Kafka", level=Level.BAD, state=str(error)))
    return call.page("setup.html", checks=checks)


async def log_page(call: Call) -> Response:
    """Return the newest acts of operators."""
    call.session.demand_read()
    part = call.query("part")
    if part == "processors":
        names = known_processors(call)
        lines = await call.parts.operators.in_kafka(lambda kafka: _processor_log(kafka, names))
    else:
        lines = await call.parts.operators.in_database(lambda sql: operator_log(sql, part, _LOG_LINES))
    return call.page("log.html", lines=lines, part=part)


def _processor_log(kafka: Kafka, names: Iterable[str]) -> list[LogLine]:
    """Return the newest acts on all processors, newest first."""
    lines = [line for name in names for line in processors.operator_log(kafka, name, _LOG_LINES)]
    return sorted(lines, key=lambda line: line.at, reverse=True)[:_LOG_LINES]


def _processes(call: Call) -> Iterator[Check]:
    versions = {server.status["version"] for server in call.parts.servers.processes if server.status}
    for server in call.parts.servers.processes:
        verdict = server.verdict()
        state = verdict.sentence or f"version {server.status['version'] if server.status else '?'}"
        yield Check(name=f"process {server.url}", level=verdict.level, state=state)
        for worker in server.workers:
            for warning in worker.get("warnings") or ():
                yield Check(name=worker["name"], level=Level.WARNING, state=str(warning))
    if len(versions) > 1:
        yield Check(
            name="versions", level=Level.WARNING, state=f"processes run {', '.join(sorted(versions))}",
            remedy="Update the others.",
        )  # fmt: skip


def _database(connection: psycopg.Connection[Any]) -> Iterator[Check]:
    schema = status(connection)
    pending = [migration.name for migration in schema.migrations if migration.applied_at is None]
    yield Check(
        name="migrations",
        level=Level.BAD if pending else Level.GOOD,
        state=f"{len(pending)} are missing: {', '.join(pending)}"
        if pending
        else f"{len(schema.migrations)} are applied",
        remedy="compactory sql install" if pending else "",
    )
    for table in schema.tables:
        yield Check(
            name=f"table {table.table}",
            level=Level.BAD if table.problems else Level.GOOD,
            state="; ".join(table.problems) or "it is adopted: every committed change is found",
            remedy=table.remedy or "",
        )
    yield Check(
        name="Postgres", level=Level.GOOD, state=f"version {connection.info.parameter_status('server_version')}"
    )
    row = connection.execute("SELECT extract(epoch FROM clock_timestamp())::float8").fetchone()
    assert row is not None
    difference = abs(row[0] - time.time())
    yield Check(
        name="clocks",
        level=Level.GOOD if difference < _CLOCK_SECONDS else Level.WARNING,
        state=f"those of Postgres and of the console differ by {difference:.1f} s",
        remedy="" if difference < _CLOCK_SECONDS else "Synchronise the clocks (NTP).",
    )


async def _part(call: Call, part: str, connect: Any) -> Check:
    try:
        await call.parts.operators.in_database(lambda _: None, connect)
    except CompactoryError as error:
        return Check(name=part, level=Level.WARNING, state=str(error))
    return Check(name=part, level=Level.GOOD, state="its tables are there, and the console's role has the rights")


async def _connector(call: Call, name: str, connector: ConnectorConfig) -> list[Check]:
    """Return the problems and warnings of a directory's connector, as ``compactory source validate`` finds them."""
    title = f"connector of {name}"
    try:
        preview = await call.parts.operators.in_tables(connector, partial(preview_connector, limit=1))
    except ConfigError as error:
        return [Check(name=title, level=Level.BAD, state=problem) for problem in error.problems]
    except CompactoryError as error:
        return [Check(name=title, level=Level.BAD, state=str(error))]
    warnings = [*preview.warnings, *(warning for table in preview.tables for warning in table.warnings)]
    if warnings:
        return [Check(name=title, level=Level.WARNING, state=warning) for warning in warnings]
    tables = ", ".join(table.table for table in preview.tables)
    return [Check(name=title, level=Level.GOOD, state=f"it reads {tables}, and its role may")]


def _topics(kafka: Kafka, names: list[str]) -> Iterator[Check]:
    configs = kafka.topic_configs(names)
    for name in names:
        if name not in configs:
            yield Check(
                name=f"topic {name}", level=Level.BAD, state="it is not on the console's Kafka",
                remedy="Write the cluster of the servers into [kafka] of the console.",
            )  # fmt: skip
    for name, config in configs.items():
        policy, replicas = config.get("cleanup.policy", ""), int(config.get("min.insync.replicas", "1"))
        if policy != "compact":
            remedy = f"kafka-configs.sh --alter --topic {name} --add-config cleanup.policy=compact"
            yield Check(name=f"topic {name}", level=Level.BAD, state=f"cleanup.policy is {policy}", remedy=remedy)
        elif replicas < 2:
            yield Check(
                name=f"topic {name}", level=Level.WARNING, state=f"it is compacted; min.insync.replicas is {replicas}",
                remedy="With 2 no acknowledged record is lost with one broker.",
            )  # fmt: skip
        else:
            yield Check(
                name=f"topic {name}", level=Level.GOOD, state=f"it is compacted; min.insync.replicas is {replicas}"
            )
