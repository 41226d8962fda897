"""All topics of a connector beside its tables, one after the other."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from compactory.errors import ConfigError
from compactory.kafka.client import Kafka

from ..config.connector import ConnectorConfig
from ..offsets.stored_offsets import matching
from ..planning.planner import plan_tables
from ..planning.table_plan import TablePlan
from ..postgres.server import connected
from .outcome import Outcome
from .progress import Progress, untold
from .verifier import Options, Verifier

__all__ = ["by_topic", "chosen_plans", "verify"]


def verify(
    connector: ConnectorConfig,
    kafka: Kafka,
    options: Options,
    *,
    tables: Sequence[str] = (),
    topic: str | None = None,
    progress: Progress = untold,
) -> Iterator[Outcome]:
    """Compare the topics of a connector with its tables; ``tables`` and ``topic`` choose some of them.

    Raises ConfigError with all problems, Unreachable, and CompactoryError for a statement that Postgres refuses.
    """
    with connected(connector.connection) as server:
        plans = plan_tables(server, connector)
        chosen = chosen_plans(plans, server.database, tables)
        _refuse(chosen)
        for name, (its, whole) in by_topic(plans, chosen, topic).items():
            yield Verifier(connector, kafka, server, its, options, progress).run(name, whole=whole)


def chosen_plans(plans: Sequence[TablePlan], database: str, tables: Sequence[str]) -> list[TablePlan]:
    """The plans of the tables that are meant; all where none is named. Raises ConfigError for a name that fits none."""
    named = {plan.full_name(database): plan for plan in plans}
    return [named[name] for name in matching(list(named), tables)]


def by_topic(
    plans: Sequence[TablePlan], chosen: Sequence[TablePlan], topic: str | None = None
) -> dict[str, tuple[list[TablePlan], bool]]:
    """The chosen tables by topic, and whether they are all that the connector publishes there. Raises ConfigError."""
    found: dict[str, tuple[list[TablePlan], bool]] = {}
    for name in dict.fromkeys(name for plan in chosen for name in plan.rows.topics):
        its = [plan for plan in chosen if name in plan.rows.topics]
        found[name] = its, len(its) == sum(name in plan.rows.topics for plan in plans)
    if topic is None:
        return found
    if topic not in found:
        raise ConfigError(f"the connector publishes to {', '.join(found) or 'no topic'}, not to topic {topic!r}")
    return {topic: found[topic]}


def _refuse(plans: Sequence[TablePlan]) -> None:
    """Raise ConfigError for tables of which a topic can't say what they are."""
    problems = [f"{plan.label}: its records have no key, so nothing tells them apart" for plan in plans if plan.keyless]
    if problems:
        raise ConfigError(problems)
