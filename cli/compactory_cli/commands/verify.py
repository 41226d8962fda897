"""``compactory verify``: compares topics with their tables."""

from __future__ import annotations

import base64
import time
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ..context.flags import argument, flag, option
from ..context.session import Problems, Providers, all_of, begin_source, load_connectors, refuse

if TYPE_CHECKING:
    from collections.abc import Sequence

    from compactory.kafka.client import Kafka
    from compactory_connectors.source.config.connector import ConnectorConfig
    from compactory_connectors.source.verify.checker import Outcome

    from ..context.configuration import Configuration

__all__ = ["verify_tables"]

_MOST_KEYS = 10_000  # of one request
_PAUSE = 0.5  # seconds between two comparisons while a source repairs


def verify_tables(
    targets: Annotated[
        list[str] | None,
        argument(
            "[DIRECTORY|CONNECTOR.json]…",
            "Default: all directories that name a connector.",
        ),
    ] = None,
    tables: Annotated[list[str] | None, option("--table", "TABLE", "Only this table; repeatable.")] = None,
    provider: Providers = None,
    wait: Annotated[float, option("--wait", "SECONDS", "Time that a source may take to catch up.", min=0)] = 30.0,
    limit: Annotated[int, option("--limit", "N", "Differing keys to show.", min=0)] = 20,
    values: Annotated[bool, flag("--values/--no-values", "Show both values of differing keys, or keys only.")] = True,
    digests: Annotated[bool, flag("--digests", "Digests of both sides by key range, for other tools.")] = False,
    repair: Annotated[bool, flag("--repair", "Send differing rows, tombstones of extra keys; compare again.")] = False,
    approve: Annotated[bool, flag("--approve", "Remove more keys than compactory.max.removed.percent allows.")] = False,
    url: Annotated[str | None, option("--url", "URL", "The source that repairs; default: COMPACTORY_URL.")] = None,
) -> None:
    """Compare the entries of lookups with the rows of the table, key by key, while both change.

    Waits for changes that are not published yet, and reports only differences that will stay. Exit code 0: equal, or
    repaired. 1: different. 3: no difference, but rows that were not published in time, or that no running source will
    publish. 4: a repair found another process at work.

    Example: `compactory verify terminal_acquirer --repair`
    """
    configuration = begin_source()
    pairs, kafka = all_of(partial(_resolve_targets, configuration, targets or (), provider or ()), configuration.kafka)
    from compactory_connectors.source.runtime.repair import MOST_REPAIRS
    from compactory_connectors.source.verify.verifier import Options, verify

    from ..views.verify_view import exit_code_of_outcomes, progress, show_outcomes

    most_differences = MOST_REPAIRS if repair else max(limit, 1)  # keys to keep: those to show, or to send again
    options = Options(wait=wait, most_differences=most_differences, digests=digests)
    outcomes: list[Outcome] = []
    repaired = 0
    with progress() as report:
        for connector, topic in pairs:
            compare = partial(verify, connector, kafka, options, tables=tables or (), topic=topic, progress=report)
            compared = list(compare())
            if repair and any(outcome.different for outcome in compared):
                sent, by_source = _repair(configuration, connector, kafka, compared, url or configuration.url, approve)
                repaired += sent
                compared = list(compare())
                deadline = time.monotonic() + wait
                while by_source and any(outcome.different for outcome in compared) and time.monotonic() < deadline:
                    time.sleep(_PAUSE)
                    compared = list(compare())
            outcomes += compared
    show_outcomes(outcomes, limit=limit, values=values, repaired=repaired if repair else None)
    if code := exit_code_of_outcomes(outcomes):
        raise typer.Exit(code)


def _repair(
    configuration: Configuration,
    connector: ConnectorConfig,
    kafka: Kafka,
    outcomes: Sequence[Outcome],
    url: str | None,
    approved: bool,
) -> tuple[int, bool]:
    """Send every differing key again: by the running source, else by this process.

    Return the number of keys, and True if a source sends some. Raises ConfigError, StepFailed, LeaseLost, Unreachable.
    """
    from compactory_connectors.source.runtime.repair import refuse_repair, repair

    refuse_repair(connector, outcomes, approved=approved)
    count, by_source = 0, False
    for outcome in outcomes:
        keys = [difference.key for difference in outcome.differences]
        count += len(keys)
        if keys and not outcome.sources:
            repair(connector, kafka, outcome.tables[0], keys)
        elif keys:
            if url is None:
                refuse(
                    f"a source of {connector.name!r} runs and has to do the repair: {'; '.join(outcome.sources)};"
                    " give --url with the address that its --listen has, or stop it first"
                )
            by_source = True
            server = configuration.server(url, orders=True)
            for start in range(0, len(keys), _MOST_KEYS):
                page = [base64.b64encode(key).decode() for key in keys[start : start + _MOST_KEYS]]
                server.order(connector.name, "resend", table=outcome.tables[0], document={"keys_base64": page})
    return count, by_source


def _resolve_targets(
    configuration: Configuration, names: Sequence[str], provider: Sequence[str]
) -> list[tuple[ConnectorConfig, str | None]]:
    """Return each connector to compare, with the topic if a directory names it. Raises ConfigError."""
    described = [name for name, settings in configuration.directories.items() if settings.connector is not None]
    targets = list(dict.fromkeys(names or described))
    if not targets:
        refuse(
            'which directories? none of compactory.toml names its connector: write connector = "FILE.json" into'
            " [directories.NAME], or give connectors' files"
        )
    problems = Problems()
    resolved = [problems.of(partial(_resolve_target, configuration, target, provider)) or [] for target in targets]
    problems.raise_any()
    return [pair for pairs in resolved for pair in pairs]


def _resolve_target(
    configuration: Configuration, target: str, provider: Sequence[str]
) -> list[tuple[ConnectorConfig, str | None]]:
    settings = configuration.directories.get(target)
    if settings is None:
        if Path(target).suffix not in {".json", ".properties"}:
            existing = ", ".join(configuration.directories) or "none"
            refuse(
                f"{target!r} is neither a directory of compactory.toml (it has {existing}) nor a connector's .json or"
                " .properties"
            )
        return [(connector, None) for connector in load_connectors([Path(target)], provider)]
    if settings.connector is None:
        refuse(
            f'directory {target!r} names no connector: write connector = "FILE.json" into [directories.{target}] of'
            f" {configuration.file}, or give the connector's file"
        )
    return [(connector, settings.directory.topic) for connector in load_connectors([settings.connector], provider)]
