"""``compactory verify``: compares topics with their tables."""

from __future__ import annotations

import base64
import time
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ..context.flags import argument, flag, option
from ..context.session import Problems, Providers, all_of, begin_source, load_connectors, refuse
from ..views.tables import Column, Table, document, print_tables
from ..views.terminal import (
    counted,
    cut,
    error_output,
    escape,
    legible,
    named,
    number,
    print_json,
    say,
    seconds,
    wants_json,
)

if TYPE_CHECKING:
    from compactory.kafka.client import Kafka
    from compactory_connectors.source.config.connector import ConnectorConfig
    from compactory_connectors.source.verify.checker import Difference, Outcome

    from ..context.configuration import Configuration

__all__ = ["verify_tables"]

_MOST_KEYS = 10_000  # of one request
_PAUSE = 0.5  # seconds between two comparisons while a source repairs
_DIFFERENT, _NOT_IN_TIME = 1, 3
_MEANINGS = {
    "missing": "the table has them, lookups don't find them",
    "extra": "lookups find them, the table does not have them",
    "different": "the topic has another record than the table's row makes",
    "changing": "written again at every comparison, so there is no verdict on them; a longer --wait may help",
    "unreadable": "of rows that can't be converted, so their records are not known",
}


def verify_tables(
    targets: Annotated[
        list[str] | None,
        argument("[DIRECTORY|CONNECTOR.json]…", "Default: all directories that name a connector."),
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

    most_differences = MOST_REPAIRS if repair else max(limit, 1)  # keys to keep: those to show, or to send again
    options = Options(wait=wait, most_differences=most_differences, digests=digests)
    outcomes: list[Outcome] = []
    repaired = 0
    with error_output().status("connecting") as status:

        def report(doing: str, count: int) -> None:
            status.update(f"{escape(doing)}: {number(count)}")

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
    _show_outcomes(outcomes, limit=limit, values=values, repaired=repaired if repair else None)
    if any(outcome.different or outcome.unsure for outcome in outcomes):
        raise typer.Exit(_DIFFERENT)
    if not all(outcome.equal for outcome in outcomes):
        raise typer.Exit(_NOT_IN_TIME)


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


def _show_outcomes(outcomes: Sequence[Outcome], *, limit: int, values: bool, repaired: int | None) -> None:
    """Print the outcomes. ``repaired`` is the number of keys that were sent again; None without a repair."""
    if wants_json():
        repairs = {} if repaired is None else {"repaired": repaired}
        topics = [_outcome_json(outcome, limit, values) for outcome in outcomes]
        print_json({"equal": all(outcome.equal for outcome in outcomes), **repairs, "topics": topics})
        return
    if repaired:
        say(f"sent again as the table has them: {counted(repaired, 'key')}; then:")
    for outcome in outcomes:
        verdict = "[green]equal[/]" if outcome.equal else "[yellow]not caught up[/]"
        if outcome.different or outcome.unsure:
            verdict = "[red]different[/]"
        tables = ", ".join(outcome.tables)
        counts = f"{counted(outcome.expected, 'key')} in {tables}, {number(outcome.stored)} in the topic"
        say(f"[bold]{escape(outcome.topic)}[/]  {verdict}  {escape(counts)}, {seconds(outcome.seconds)}")
        for text in (*_sentences(outcome), *outcome.notes):
            say(f"  {escape(text)}")
        if limit:
            columns = _DIFFERENCES if values else [column for column in _DIFFERENCES if column not in _VALUES]
            print_tables(Table("differences", outcome.differences[:limit], columns))
        hidden = outcome.different - min(limit, len(outcome.differences))
        if limit and hidden > 0:
            say(f"  and {number(hidden)} more; --limit shows more of them")
        if outcome.digests is not None:
            table, topic = outcome.digests.table, outcome.digests.topic
            ranges = len(table.differing(topic))
            say(f"  digest of the table {table.total}, of the topic {topic.total}, {ranges} ranges differ")


def _sentences(outcome: Outcome) -> Iterator[str]:
    counts = {finding.value: count for finding, count in outcome.findings.items()}
    for kind, text in _MEANINGS.items():
        if counts.get(kind):
            yield f"{number(counts[kind])} {kind}: {text}"
    if counts.get("pending"):
        yield f"{number(counts['pending'])} pending: the table is ahead of what was published{_why_pending(outcome)}"
    if not outcome.polled:
        yield "no source of the connector has polled it yet"
    for reason in outcome.unreadable:
        yield f"a row that can't be converted: {reason}"
    if outcome.doubled:
        yield f"in several partitions: {counted(outcome.doubled, 'key')}; the newer timestamp answers lookups"


def _why_pending(outcome: Outcome) -> str:
    if outcome.paused:
        return ", and the connector is paused: compactory source resume"
    if outcome.sources:
        return "; a source runs and did not get there in time: see its status"
    return ", and no source of the connector runs"


def _topic_value(difference: Difference) -> str:
    record = difference.stored
    if record is not None and record.value is None:
        return "(tombstone)"
    return cut(record.value if record is not None else None, difference.expected)


def _partitions(difference: Difference) -> str | None:
    record = difference.stored
    return ", ".join(map(str, difference.partitions)) or (str(record.partition) if record is not None else None)


_VALUES = (
    Column("table", None, lambda item: cut(item.expected, item.stored.value if item.stored is not None else None)),
    Column("topic", None, _topic_value),
)
_DIFFERENCES = (
    Column("key", legible),
    Column("", None, lambda item: item.finding.value),
    *_VALUES,
    Column("partition", None, _partitions),
    Column("offset", None, lambda item: item.stored.offset if item.stored is not None else None, right=True),
)


def _outcome_json(outcome: Outcome, limit: int, values: bool) -> dict[str, Any]:
    from compactory.read.digest import VERSION
    from compactory_connectors.source.verify.checker import Finding

    fields: dict[str, Any] = document(outcome)
    del fields["findings"]
    fields |= {finding.value: outcome.findings[finding] for finding in Finding if finding is not Finding.EQUAL}
    fields |= {"unreadable_rows": fields.pop("unreadable"), "several_partitions": fields.pop("doubled")}
    fields |= {"unreadable": outcome.findings[Finding.UNREADABLE], "equal": outcome.equal}
    fields["differences"] = [_difference_json(item, values) for item in outcome.differences[:limit]]
    if outcome.digests is not None:
        fields["digests"] = {"version": VERSION} | {
            name: [{"count": digest.count, "digest": str(digest)} for digest in side.ranges]
            for name, side in (("table", outcome.digests.table), ("topic", outcome.digests.topic))
        }
    return fields


def _difference_json(difference: Difference, values: bool) -> dict[str, Any]:
    record = difference.stored
    fields: dict[str, Any] = {"finding": difference.finding.value, **named("key", difference.key)}
    if values:
        fields |= named("expected", difference.expected)
        fields |= named("found", record.value if record is not None else None)
    fields |= {name: getattr(record, name, None) for name in ("partition", "offset", "timestamp_ms")}
    return fields | {"partitions": list(difference.partitions)}
