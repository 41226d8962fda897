"""The output of ``compactory verify``. Values go to stdout, where an operator asked for them, and never to a log."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from rich.markup import escape

from .terminal import (
    counted,
    cut,
    error_output,
    fields,
    legible,
    named,
    number,
    print_json,
    print_table,
    say,
    seconds,
    wants_json,
)

if TYPE_CHECKING:
    from compactory_connectors.source.verify.checker import Difference, Outcome, Progress

__all__ = ["exit_code_of_outcomes", "progress", "show_outcomes"]

_DIFFERENT, _NOT_IN_TIME = 1, 3


@contextmanager
def progress() -> Iterator[Progress]:
    """Yield a function that shows the current step and its count on stderr, if that is a terminal."""
    with error_output().status("connecting") as status:
        yield lambda doing, count: status.update(f"{escape(doing)}: {number(count)}")


def show_outcomes(
    outcomes: Sequence[Outcome],
    *,
    limit: int,
    values: bool,
    repaired: int | None = None,
) -> None:
    """Print the outcomes for people or programs. ``repaired`` is the number of keys that were sent again."""
    if wants_json():
        document: dict[str, Any] = {"equal": all(outcome.equal for outcome in outcomes)}
        document |= {} if repaired is None else {"repaired": repaired}
        print_json(document | {"topics": [_outcome_json(outcome, limit, values) for outcome in outcomes]})
        return
    if repaired:
        say(f"sent again as the table has them: {counted(repaired, 'key')}; then:")
    for outcome in outcomes:
        _print_outcome(outcome, limit, values)


def _print_outcome(outcome: Outcome, limit: int, values: bool) -> None:
    verdict = "[green]equal[/]"
    if outcome.different or outcome.unsure:
        verdict = "[red]different[/]"
    elif not outcome.equal:
        verdict = "[yellow]not caught up[/]"
    tables = ", ".join(outcome.tables)
    counts = f"{counted(outcome.expected, 'key')} in {tables}, {number(outcome.stored)} in the topic"
    say(f"[bold]{escape(outcome.topic)}[/]  {verdict}  {escape(counts)}, {seconds(outcome.seconds)}")
    for text in (*_sentences(outcome), *outcome.notes):
        say(f"  {escape(text)}")
    if outcome.differences and limit:
        _print_differences(outcome, limit, values)
    if outcome.digests is not None:
        of_table, of_topic = outcome.digests.table, outcome.digests.topic
        ranges = len(of_table.differing(of_topic))
        say(f"  digest of the table {of_table.total}, of the topic {of_topic.total}, {ranges} ranges differ")


def _sentences(outcome: Outcome) -> list[str]:
    counts = {finding.value: count for finding, count in outcome.findings.items()}
    sentences = [f"{number(counts[kind])} {text}" for kind, text in _MEANINGS if counts.get(kind)]
    if pending := counts.get("pending"):
        sentences.append(_pending(outcome, pending))
    if not outcome.polled:
        sentences.append("no source of the connector has polled it yet")
    sentences += [f"a row that can't be converted: {reason}" for reason in outcome.unreadable]
    if outcome.doubled:
        sentences.append(
            f"in several partitions: {counted(outcome.doubled, 'key')}; the newer timestamp answers lookups"
        )
    return sentences


_MEANINGS = (
    ("missing", "missing: the table has them, lookups don't find them"),
    ("extra", "extra: lookups find them, the table does not have them"),
    ("different", "different: the topic has another record than the table's row makes"),
    (
        "changing",
        "changing: written again at every comparison, so there is no verdict on them; a longer --wait may help",
    ),
    ("unreadable", "of rows that can't be converted, so their records are not known"),
)


def _pending(outcome: Outcome, count: int) -> str:
    pending = f"{number(count)} pending: the table is ahead of what was published"
    if outcome.paused:
        return f"{pending}, and the connector is paused: compactory source resume"
    if outcome.sources:
        return f"{pending}; a source runs and did not get there in time: see its status"
    return f"{pending}, and no source of the connector runs"


def _print_differences(outcome: Outcome, limit: int, values: bool) -> None:
    print_table(
        ("key", "", *(("table", "topic") if values else ()), "partition", "offset"),
        (_difference_row(difference, values) for difference in outcome.differences[:limit]),
        right=("offset",),
    )
    hidden = outcome.different - min(limit, len(outcome.differences))
    if hidden > 0:
        say(f"  and {number(hidden)} more; --limit shows more of them")


def _difference_row(difference: Difference, values: bool) -> Iterator[object]:
    record = difference.stored
    yield legible(difference.key)
    yield "bad record" if _unreadable(difference) else difference.finding.value
    if values:
        value = record.value if record is not None else None
        yield cut(difference.expected, value)
        yield "(tombstone)" if record is not None and value is None else cut(value, difference.expected)
    yield ", ".join(map(str, difference.partitions)) or (str(record.partition) if record is not None else "–")
    yield record.offset if record is not None else None


def _unreadable(difference: Difference) -> bool:
    """Return True if the row makes JSON and the topic has something else, which no reader can use."""
    if difference.expected is None or difference.stored is None or difference.stored.value is None:
        return False
    return _is_json(difference.expected) and not _is_json(difference.stored.value)


def _is_json(value: bytes) -> bool:
    import orjson

    try:
        orjson.loads(value)
    except orjson.JSONDecodeError:
        return False
    return True


def _outcome_json(outcome: Outcome, limit: int, values: bool) -> dict[str, Any]:
    from compactory.read.digest import VERSION
    from compactory_connectors.source.verify.checker import Finding

    document: dict[str, Any] = {
        **fields(outcome, "topic", "tables", "equal", "expected", "stored"),
        **{finding.value: outcome.findings[finding] for finding in Finding if finding is not Finding.EQUAL},
        "several_partitions": outcome.doubled,
        "unreadable_rows": list(outcome.unreadable),
        **fields(outcome, "polled", "sources", "paused", "notes", "rounds"),
        "seconds": round(outcome.seconds, 3),
        "differences": [_key_json(difference, values) for difference in outcome.differences[:limit]],
    }
    if outcome.digests is not None:
        sides = {"table": outcome.digests.table, "topic": outcome.digests.topic}
        document["digests"] = {"version": VERSION} | {
            name: [{"count": digest.count, "digest": str(digest)} for digest in side.ranges]
            for name, side in sides.items()
        }
    return document


def _key_json(difference: Difference, values: bool) -> dict[str, Any]:
    record = difference.stored
    document: dict[str, Any] = {"finding": difference.finding.value, **named("key", difference.key)}
    if values:
        document |= named("expected", difference.expected) | named(
            "found", record.value if record is not None else None
        )
    document |= {name: getattr(record, name, None) for name in ("partition", "offset", "timestamp_ms")}
    return document | {"partitions": list(difference.partitions)}


def exit_code_of_outcomes(outcomes: Sequence[Outcome]) -> int:
    """Return the exit code for the outcomes of tables."""
    if any(outcome.different or outcome.unsure for outcome in outcomes):
        return _DIFFERENT
    return 0 if all(outcome.equal for outcome in outcomes) else _NOT_IN_TIME
