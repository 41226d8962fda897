"""The output of ``compactory verify``. Values go to stdout, where an operator asked for them, and never to a log."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from rich.markup import escape

from .tables import document
from .terminal import (
    counted,
    cut,
    error_output,
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
_MEANINGS = {
    "missing": "the table has them, lookups don't find them",
    "extra": "lookups find them, the table does not have them",
    "different": "the topic has another record than the table's row makes",
    "changing": "written again at every comparison, so there is no verdict on them; a longer --wait may help",
    "unreadable": "of rows that can't be converted, so their records are not known",
}


@contextmanager
def progress() -> Iterator[Progress]:
    """Yield a function that shows the current step and its count on stderr, if that is a terminal."""
    with error_output().status("connecting") as status:
        yield lambda doing, count: status.update(f"{escape(doing)}: {number(count)}")


def show_outcomes(outcomes: Sequence[Outcome], *, limit: int, values: bool, repaired: int | None = None) -> None:
    """Print the outcomes for people or programs. ``repaired`` is the number of keys that were sent again."""
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
        if outcome.differences and limit:
            _print_differences(outcome, limit, values)
        if outcome.digests is not None:
            table, topic = outcome.digests.table, outcome.digests.topic
            ranges = len(table.differing(topic))
            say(f"  digest of the table {table.total}, of the topic {topic.total}, {ranges} ranges differ")


def exit_code_of_outcomes(outcomes: Sequence[Outcome]) -> int:
    """Return the exit code for the outcomes of tables."""
    if any(outcome.different or outcome.unsure for outcome in outcomes):
        return _DIFFERENT
    return 0 if all(outcome.equal for outcome in outcomes) else _NOT_IN_TIME


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


def _print_differences(outcome: Outcome, limit: int, values: bool) -> None:
    titles = ("key", "", *(("table", "topic") if values else ()), "partition", "offset")
    print_table(titles, (_row(item, values) for item in outcome.differences[:limit]), right=("offset",))
    hidden = outcome.different - min(limit, len(outcome.differences))
    if hidden > 0:
        say(f"  and {number(hidden)} more; --limit shows more of them")


def _row(difference: Difference, values: bool) -> Iterator[object]:
    record = difference.stored
    value = record.value if record is not None else None
    yield legible(difference.key)
    # the row makes JSON, and the topic has what no reader can use
    is_bad = value is not None and _is_json(difference.expected) and not _is_json(value)
    yield "bad record" if is_bad else difference.finding.value
    if values:
        yield cut(difference.expected, value)
        yield "(tombstone)" if record is not None and value is None else cut(value, difference.expected)
    yield ", ".join(map(str, difference.partitions)) or (str(record.partition) if record is not None else "–")
    yield record.offset if record is not None else None


def _is_json(value: bytes | None) -> bool:
    import orjson

    try:
        orjson.loads(value or b"")
    except orjson.JSONDecodeError:
        return False
    return True


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
