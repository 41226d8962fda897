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
    "changing": "written again at every look, so there is no verdict on them; a longer --wait may help",
}


def show_sides(sides: Sequence[SideOutcome], *, limit: int, values: bool) -> None:
    """Print them for people."""
    for side in sides:
        _print(side, limit, values)


def side_documents(sides: Sequence[SideOutcome], *, limit: int, values: bool) -> dict[str, Any]:
    """Them for programs: ``stores`` and ``exports``."""
    found: dict[str, list[dict[str, Any]]] = {"stores": [], "exports": []}
    for side in sides:
        found[f"{side.kind}s"].append(_document(side, limit, values))
    return found


def _print(side: SideOutcome, limit: int, values: bool) -> None:
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
                (legible(each.key), each.finding.value)
                + ((cut(each.expected, each.found), cut(each.found, each.expected)) if values else ())
                for each in side.differences[:limit]
            ),
        )


def _remarks(side: SideOutcome) -> list[str]:
    said = list(side.notes)
    if side.behind:
        said.append(f"compared as it was {counted(side.behind, 'offset')} before the topic's end")
    if side.bad:
        said.append(f"left out for a bad newest record: {counted(side.bad, 'key')}; compactory errors lists them")
    return said


def _document(side: SideOutcome, limit: int, values: bool) -> dict[str, Any]:
    from compactory_connectors.source.verify.checker import Finding

    kinds = (Finding.MISSING, Finding.EXTRA, Finding.DIFFERENT, Finding.CHANGING)
    return {
        **fields(side, "place", "equal", "failure", "expected", "stored"),
        **{kind.value: side.findings.get(kind, 0) for kind in kinds},
        "bad": side.bad,
        "positions": {str(number): position for number, position in sorted(side.positions.items())},
        **fields(side, "behind", "ranges", "notes"),
        "seconds": round(side.seconds, 3),
        "differences": [_difference(each, values) for each in side.differences[:limit]],
    }


def _difference(each: Differing, values: bool) -> dict[str, Any]:
    document = {"finding": each.finding.value, **named("key", each.key)}
    return document | (named("expected", each.expected) | named("found", each.found) if values else {})
