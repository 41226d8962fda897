"""``compactory verify``: compares topics with their tables."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ..context.flags import Flags, flag, option
from ..context.loading import connector_command, load_connectors
from ..context.session import all_of, begin, refuse
from .comparison import Comparison

if TYPE_CHECKING:
    from compactory_connectors.source.config.connector import ConnectorConfig
    from compactory_connectors.source.verify.outcome import Outcome

    from ..context.configuration import Configuration

__all__ = ["verify_tables"]


@connector_command
def verify_tables(
    flags: Flags,
    comparison: Comparison,
    *,
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
) -> None:
    """Compare the entries of lookups with the rows of the table, key by key, while both change.

    Waits for changes that are not published yet, and reports only differences that will stay. Exit code 0: equal, or
    repaired. 1: different. 3: no difference, but rows that were not published in time, or that no running source will
    publish. 4: a repair found another process at work.
    """
    configuration = begin(flags)
    (connectors, topic), kafka = all_of(lambda: _resolve_target(configuration, comparison), configuration.kafka)
    from compactory_connectors.source.runtime.repair import MOST_REPAIRS

    from ..views.verify_view import exit_code_of_outcomes, progress, show_outcomes
    from .verify_repair import Repairs

    repairs = Repairs(configuration, kafka, url) if repair else None
    outcomes: list[Outcome] = []
    most_differences = MOST_REPAIRS if repair else None  # keys that may be sent again
    with progress() as report:
        for connector in connectors:
            compare = partial(
                comparison.of, connector, kafka, topic, report, digests=digests, most_differences=most_differences
            )
            connector_outcomes = compare()
            if repairs is not None and any(outcome.different for outcome in connector_outcomes):
                repairs.run(connector, connector_outcomes, approved=approve)
                connector_outcomes = repairs.settled(compare, comparison.wait)
            outcomes += connector_outcomes
    repaired = repairs.sent if repairs else None
    show_outcomes(outcomes, limit=comparison.limit, values=values, as_json=flags.json, repaired=repaired)
    if code := exit_code_of_outcomes(outcomes):
        raise typer.Exit(code)


def _resolve_target(configuration: Configuration, comparison: Comparison) -> tuple[list[ConnectorConfig], str | None]:
    """Return the connectors, and the topic if the target is a directory. Raises ConfigError."""
    target, provider = comparison.target, comparison.provider or ()
    settings = configuration.directories.get(target)
    if settings is None:
        if Path(target).suffix not in {".json", ".properties"}:
            existing = ", ".join(configuration.directories) or "none"
            refuse(
                f"{target!r} is neither a directory of compactory.toml (it has {existing}) nor a connector's .json or"
                " .properties"
            )
        return load_connectors([Path(target)], provider), None
    if settings.connector is None:
        refuse(
            f'directory {target!r} names no connector: write connector = "FILE.json" into [directories.{target}] of'
            f" {configuration.file}, or give the connector's file"
        )
    return load_connectors([settings.connector], provider), settings.directory.topic
