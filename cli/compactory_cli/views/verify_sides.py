"""The output of ``compactory verify --spark`` about running stores and exported files."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from rich.markup import escape

from .terminal import counted, cut, fields, legible, named, number, print_table, say, seconds

if TYPE_CHECKING:
    from compactory_connectors.spark.verification.side import Differing, SideOutcome

__all__ = ["show_sides", "side_documents"]

_MEANINGS = {
    "missing": "missing there: the topic has them",
    "extra": "extra there: the topic does not have them",
    "different": "different: another value than the topic's",
    "changing": "written again at every comparison, so there is no verdict on them; a longer --wait may help",
}


def show_sides(sides: Sequence[SideOutcome], *, limit: int, values: bool) -> None:
    """Print the outcomes of stores and exports for people."""
    for side in sides:
        _print_side(side, limit, values)


def side_documents(sides: Sequence[SideOutcome], *, limit: int, values: bool) -> dict[str, Any]:
    """Return the outcomes as JSON: ``stores`` and ``exports``."""
    documents: dict[str, list[dict[str, Any]]] = {"stores": [], "exports": []}
    for side in sides:
        documents[f"{side.kind}s"].append(_side_json(side, limit, values))
    return documents


def _print_side(side: SideOutcome, limit: int, values: bool) -> None:
    if side.failure is not None:
        say(f"[bold]{escape(side.kind)} {escape(side.place)}[/]  [yellow]not compared[/]  {escape(side.failure)}")
        return
    verdict = "[green]equal[/]" if side.equal else "[red]different[/]" if side.different else "[yellow]no verdict[/]"
    counts = f"{counted(side.stored, 'record')}, {number(side.expected)} in the topic, {seconds(side.seconds)}"
    say(f"[bold]{escape(side.kind)} {escape(side.place)}[/]  {verdict}  {counts}")
    for finding, count in side.findings.items():
        say(f"  {number(count)} {_MEANINGS.get(finding.value, finding.value)}")
    for text in _remarks(side):
        say(f"  {escape(text)}")
    if side.differences and limit:
        print_table(
            ("key", "", *(("topic", side.kind) if values else ())),
            (
                (legible(difference.key), difference.finding.value)
                + (
                    (cut(difference.expected, difference.found), cut(difference.found, difference.expected))
                    if values
                    else ()
                )
                for difference in side.differences[:limit]
            ),
        )


def _remarks(side: SideOutcome) -> list[str]:
    remarks = list(side.notes)
    if side.behind:
        remarks.append(f"compared as it was {counted(side.behind, 'offset')} before the topic's end")
    if side.bad:
        remarks.append(f"left out for a bad newest record: {counted(side.bad, 'key')}; compactory errors lists them")
    return remarks


def _side_json(side: SideOutcome, limit: int, values: bool) -> dict[str, Any]:
    from compactory_connectors.source.verify.checker import Finding

    kinds = (Finding.MISSING, Finding.EXTRA, Finding.DIFFERENT, Finding.CHANGING)
    return {
        **fields(side, "place", "equal", "failure", "expected", "stored"),
        **{kind.value: side.findings.get(kind, 0) for kind in kinds},
        "bad": side.bad,
        "positions": {str(number): position for number, position in sorted(side.positions.items())},
        **fields(side, "behind", "ranges", "notes"),
        "seconds": round(side.seconds, 3),
        "differences": [_side_key_json(difference, values) for difference in side.differences[:limit]],
    }


def _side_key_json(difference: Differing, values: bool) -> dict[str, Any]:
    document = {"finding": difference.finding.value, **named("key", difference.key)}
    return document | (named("expected", difference.expected) | named("found", difference.found) if values else {})
