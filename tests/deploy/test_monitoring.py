"""deploy/grafana and deploy/prometheus: every expression parses and uses only metrics there are; a runbook an alert."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import promql_parser
import pytest
import yaml

ROOT = Path(__file__).parents[2]
ALERTS = ROOT / "deploy" / "prometheus" / "alerts.yml"
CASES = Path(__file__).with_name("alerts_test.yml")
RUNBOOKS = ROOT / "docs" / "runbooks"
HEADINGS = ["First look", "Causes", "Remedy", "Contact"]
_PROCESS = {"process_resident_memory_bytes", "process_cpu_seconds_total"}
_SERIES = ("_bucket", "_count", "_sum")
_VARIABLES = {"$__rate_interval": "5m", "$job": "any"}


@cache
def alerts() -> dict[str, dict[str, Any]]:
    document = yaml.safe_load(ALERTS.read_text())
    rules = [rule for group in document["groups"] for rule in group["rules"]]
    found = {rule["alert"]: rule for rule in rules}
    assert len(found) == len(rules), "two alerts of one name"
    return found


@cache
def dashboard() -> dict[str, Any]:
    found: dict[str, Any] = json.loads((ROOT / "deploy" / "grafana" / "compactory.json").read_text())
    return found


def panels() -> list[dict[str, Any]]:
    return [panel for panel in dashboard()["panels"] if panel["type"] != "row"]


@cache
def reference() -> dict[str, set[str]]:
    """Metric → its labels, as the generated reference has them; histograms as the series that they are."""
    found: dict[str, set[str]] = {name: set() for name in _PROCESS}
    for line in (ROOT / "docs" / "reference" / "metrics.md").read_text().splitlines():
        if row := re.match(r"\| `(\w+)` \| (\w+) \| ([^|]*) \|", line):
            labels = set(re.findall(r"`(\w+)`", row[3]))
            suffixes = _SERIES if row[2] == "histogram" else ("",)
            found |= {row[1] + suffix: labels | ({"le"} if suffix == "_bucket" else set()) for suffix in suffixes}
    return found


def selectors(node: Any) -> Iterator[Any]:
    """The vector selectors of a parsed expression."""
    if isinstance(node, promql_parser.VectorSelector):
        yield node
        return
    for name in ("vector_selector", "expr", "lhs", "rhs"):
        inner = getattr(node, name, None)
        if inner is not None:
            yield from selectors(inner)
    for argument in getattr(node, "args", None) or ():
        yield from selectors(argument)


def problems(expression: str) -> list[str]:
    """What an expression uses and does not exist. Raises ValueError where it does not parse."""
    for variable, value in _VARIABLES.items():
        expression = expression.replace(variable, value)
    used = list(selectors(promql_parser.parse(expression)))
    assert used, expression
    found = []
    for selector in used:
        labels = reference().get(selector.name)
        if labels is None:
            found.append(f"no metric {selector.name}")
            continue
        asked = {matcher.name for matcher in selector.matchers.matchers}
        found += [f"{selector.name} has no label {name}" for name in asked - labels - {"job", "instance"}]
    return found


def grouped(expression: str) -> set[str]:
    return {name for names in re.findall(r"by \(([^)]*)\)", expression) for name in re.split(r", *", names)}


@pytest.mark.parametrize("name", sorted(alerts()))
def test_an_alert_is_whole(name: str) -> None:
    rule = alerts()[name]
    assert problems(rule["expr"]) == []
    assert rule["labels"]["severity"] in {"critical", "warning"}
    assert re.fullmatch(r"\d+[mh]", rule["for"])
    notes = rule["annotations"]
    assert set(notes) == {"summary", "description", "runbook_url"}
    assert notes["runbook_url"] == f"docs/runbooks/{name}.md"
    shown = set(re.findall(r"\$labels\.(\w+)", notes["summary"] + notes["description"]))
    if by := grouped(rule["expr"]) - {"le"}:
        assert shown <= by, "a template shows a label that the expression has aggregated away"


@pytest.mark.parametrize("name", sorted(alerts()))
def test_an_alert_has_its_runbook(name: str) -> None:
    page = (RUNBOOKS / f"{name}.md").read_text()
    assert page.startswith(f"# {name}\n")
    assert re.findall(r"^## (.+)$", page, re.MULTILINE) == HEADINGS
    assert "```sh\n" in page
    rule = alerts()[name]
    assert f"Severity `{rule['labels']['severity']}`, after {rule['for']};" in page


def test_every_runbook_has_its_alert() -> None:
    assert {page.stem for page in RUNBOOKS.glob("*.md")} == {*alerts(), "README"}


def test_metrics_that_runbooks_name_exist() -> None:
    named = {name for page in RUNBOOKS.glob("*.md") for name in re.findall(r"`(compactory_\w+)`", page.read_text())}
    assert named - reference().keys() == set()


@pytest.mark.parametrize("panel", panels(), ids=lambda panel: panel["title"])
def test_a_panel_shows_what_there_is(panel: dict[str, Any]) -> None:
    for target in panel["targets"]:
        assert problems(target["expr"]) == []
        assert 'job=~"$job"' in target["expr"]
        assert target["datasource"]["uid"] == panel["datasource"]["uid"] == "${datasource}"


def test_the_dashboard_is_laid_out_and_shows_every_figure_of_stores_and_sources() -> None:
    document = dashboard()
    assert [variable["name"] for variable in document["templating"]["list"]] == ["datasource", "job"]
    assert [panel["title"] for panel in document["panels"] if panel["type"] == "row"] == [
        "Store",
        "Source",
        "HTTP",
        "Outbox",
        "Sink",
        "Jobs",
        "Processors",
    ]
    numbers = [panel["id"] for panel in document["panels"]]
    assert len(set(numbers)) == len(numbers)
    taken: set[tuple[int, int]] = set()
    for panel in document["panels"]:
        place = panel["gridPos"]
        cells = {(place["x"] + x, place["y"] + y) for x in range(place["w"]) for y in range(place["h"])}
        assert max(x for x, _ in cells) < 24
        assert taken.isdisjoint(cells), panel["title"]
        taken |= cells
    text = json.dumps(document)
    own = {name for name in reference() if not name.startswith(("compactory_store_backend_", "process_"))}
    assert {name for name in own if name not in text} == {"compactory_http_request_seconds_sum"}


def test_alerts_fire_when_they_should_and_not_otherwise() -> None:
    """Where Prometheus' own tool is there; it is not on PyPI."""
    promtool = shutil.which("promtool")
    if promtool is None:
        pytest.skip("promtool is not installed (Debian: apt-get install prometheus)")
    for words in (
        ["check", "rules", str(ROOT / "deploy" / "prometheus" / "alerts.yml")],
        ["test", "rules", str(CASES)],
    ):
        done = subprocess.run([promtool, *words], capture_output=True, text=True, timeout=60, check=False)
        assert done.returncode == 0, done.stdout + done.stderr


def test_the_checks_see_what_is_wrong() -> None:
    assert problems("compactory_store_redy == 0") == ["no metric compactory_store_redy"]
    assert problems('sum(rate(compactory_store_lag{table="x"}[5m]))') == ["compactory_store_lag has no label table"]
    with pytest.raises(ValueError, match="parenthesis"):
        problems("sum by (job (compactory_store_lag)")
