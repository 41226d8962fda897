"""``compactory verify``: does the topic have what the table has?"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ..context.flags import Flags, argument, command, flag, option
from ..context.loading import Providers, load_connectors
from ..context.session import all_of, begin, refuse
from .spark.command import Conf, Jars, Master, spark_options

if TYPE_CHECKING:
    from compactory.kafka.client import Kafka
    from compactory_connectors.source.config.connector import ConnectorConfig
    from compactory_connectors.source.reconcile.outcome import Outcome
    from compactory_connectors.source.reconcile.progress import Progress

    from ..context.configuration import Configuration

__all__ = ["verify"]


@command
def verify(
    flags: Flags,
    target: Annotated[
        str,
        argument(
            "DIRECTORY | CONNECTOR.json", "A directory of compactory.toml that names its connector, or a connector."
        ),
    ],
    tables: Annotated[list[str] | None, option("--table", "TABLE", "Only this table; may be repeated.")] = None,
    provider: Providers = None,
    wait: Annotated[
        float, option("--wait", "SECONDS", "Time that a running source may take to catch up.", min=0)
    ] = 30.0,
    limit: Annotated[int, option("--limit", "N", "Differing keys to show.", min=0)] = 20,
    values: Annotated[
        bool, flag("--values/--no-values", "Show both values of differing keys, or only the keys.")
    ] = True,
    digests: Annotated[
        bool, flag("--digests", "Digests of both sides by key range, to compare with other tools.")
    ] = False,
    repair: Annotated[
        bool, flag("--repair", "Send differing rows again, and tombstones for extra keys; then compare again.")
    ] = False,
    approve: Annotated[bool, flag("--approve", "Remove more keys than compactory.max.removed.percent allows.")] = False,
    url: Annotated[
        str | None,
        option("--url", "URL", "Address of a running source that then does the repair; default: COMPACTORY_URL."),
    ] = None,
    on_spark: Annotated[
        bool, flag("--spark", "Compare on Spark, by digests first; also for --store and --export.")
    ] = False,
    store: Annotated[list[str] | None, option("--store", "URL", "A running server; may be repeated.")] = None,
    export: Annotated[list[str] | None, option("--export", "PATH", "Exported files; may be repeated.")] = None,
    master: Master = None,
    conf: Conf = None,
    jars: Jars = None,
) -> None:
    """Compare what lookups find with what the table has, key by key, while both change.

    Waits for changes that are not published yet, and reports only differences that will stay. With --spark it compares
    running stores and exported files with the topic too, each at its own positions. Exit code 0: equal, or repaired. 1:
    different, or an export whose files are not those of its manifest. 3: no difference, but rows that were not
    published in time, or that no running source will publish, or a store or an export that could not be reached. 4: a
    repair found another process at work.
    """
    _refuse_mixed(on_spark, repair, {"store": store, "export": export, "master": master, "conf": conf, "jars": jars})
    configuration = begin(flags)
    if on_spark:
        from .verify_spark import SparkComparison

        compared = SparkComparison(
            configuration=configuration, target=target, tables=tables or [], provider=provider or [],
            stores=store or [], exports=export or [], wait=wait, limit=limit, options=spark_options(master, conf, jars),
        )  # fmt: skip
        compared.run(values=values, as_json=flags.json)
        return
    (connectors, topic), kafka = all_of(lambda: _resolve(configuration, target, provider or []), configuration.kafka)
    from ..views.verify_view import Progress, code_of, show
    from .verify_repair import Repairs

    comparison = _Comparison(kafka=kafka, tables=tables or [], topic=topic, wait=wait, limit=limit, digests=digests)
    repairs = Repairs(configuration, kafka, url) if repair else None
    outcomes: list[Outcome] = []
    with Progress() as progress:
        for connector in connectors:
            its = comparison.of(connector, progress.update, keys=repair)
            if repairs is not None and any(outcome.different for outcome in its):
                repairs.run(connector, its, approved=approve)
                its = repairs.settled(partial(comparison.of, connector, progress.update, keys=True), wait)
            outcomes += its
    show(outcomes, limit=limit, values=values, as_json=flags.json, repaired=repairs.sent if repairs else None)
    if code := code_of(outcomes):
        raise typer.Exit(code)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Comparison:
    """The arguments of a comparison, and the comparison of one connector."""

    kafka: Kafka
    tables: Sequence[str]
    topic: str | None
    wait: float
    limit: int
    digests: bool

    def of(self, connector: ConnectorConfig, progress: Progress, *, keys: bool) -> list[Outcome]:
        """Compare one connector; with ``keys`` as many differing keys are kept as a repair may send again."""
        from compactory_connectors.source.reconcile.repair import MOST_REPAIRS
        from compactory_connectors.source.reconcile.verification import verify as compare
        from compactory_connectors.source.reconcile.verifier import Options

        most = MOST_REPAIRS if keys else max(self.limit, 1)
        options = Options(wait=self.wait, most=most, digests=self.digests)
        found = compare(connector, self.kafka, options, tables=self.tables, topic=self.topic, progress=progress)
        return list(found)


def _refuse_mixed(on_spark: bool, repair: bool, needing: Mapping[str, object]) -> None:
    given = [f"--{name}" for name, value in needing.items() if value]
    if given and not on_spark:
        refuse(f"{', '.join(given)}: only with --spark")
    if repair and on_spark:
        refuse("--repair and --spark exclude each other: repair with compactory verify --repair alone")


def _resolve(
    configuration: Configuration, target: str, provider: Sequence[str]
) -> tuple[list[ConnectorConfig], str | None]:
    """The connectors, and the topic where a directory was named. Raises ConfigError."""
    settings = configuration.directories.get(target)
    if settings is None:
        if Path(target).suffix not in {".json", ".properties"}:
            known = ", ".join(configuration.directories) or "none"
            refuse(
                f"{target!r} is neither a directory of compactory.toml (it has {known}) nor a connector's .json or"
                " .properties"
            )
        return load_connectors([Path(target)], provider), None
    if settings.connector is None:
        refuse(
            f'directory {target!r} names no connector: write connector = "FILE.json" into [directories.{target}] of'
            f" {configuration.file}, or give the connector's file"
        )
    return load_connectors([settings.connector], provider), settings.directory.topic
