"""The console in Chromium: each page without an error, live changes, outages, hostile values, accessibility."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
from orjson import dumps

from tests.console.conftest import Running
from tests.console.test_console import HOSTILE, pages_of
from tests.console.visitor import Visitor
from tests.source.workload import wait_until

pytestmark = pytest.mark.proof

SKIPPED = ("/events", "/live/overview", "/charts", "/chart", "/row", "/sources/{connector}")


def test_each_page_has_no_error_and_asks_no_other_host(visitor: Visitor, running: Running) -> None:
    for path, address in pages_of(running).items():
        if not path.endswith(SKIPPED):
            visitor.page.goto(address)
            visitor.page.wait_for_selector("h1")
    assert visitor.messages == []
    assert visitor.hosts == {running.url.removeprefix("http://")}


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [1280, 390])
def test_each_page_is_accessible(browser: Any, running: Running, tmp_path: Path, scheme: str, width: int) -> None:
    archive = subprocess.run(
        ["npm", "pack", "--silent", "axe-core@4.10.3"], cwd=tmp_path, capture_output=True, check=True
    )
    shutil.unpack_archive(tmp_path / archive.stdout.decode().strip(), tmp_path)
    axe = (tmp_path / "package" / "axe.min.js").read_text()
    viewport = {"width": width, "height": 800}
    visitor = Visitor(browser, running.url, color_scheme=scheme, viewport=viewport, bypass_csp=True)
    running.topics.produce(running.directory, ("T1", b"{"), ("T5", dumps({"acquirerId": "A9"})))
    problems = []
    for path, address in pages_of(running).items():
        if path.endswith(SKIPPED):
            continue
        visitor.page.goto(address)
        visitor.page.evaluate(axe)
        found = visitor.page.evaluate("async () => (await axe.run()).violations")
        problems += [(address, item["id"], [node["html"][:120] for node in item["nodes"][:3]]) for item in found]
        is_wide = visitor.page.evaluate("document.documentElement.scrollWidth > innerWidth")
        assert not is_wide, f"{address} is wider than the window"
    visitor.context.close()
    assert problems == []


def test_changes_come_while_nobody_selects(visitor: Visitor, running: Running) -> None:
    page = visitor.page
    page.goto(f"/servers/0/directories/{running.directory}/live")
    running.topics.produce(running.directory, ("T1", dumps({"acquirerId": "first"})))
    page.wait_for_selector("text=first")
    page.evaluate("getSelection().selectAllChildren(document.querySelector('[data-feed] td'))")
    running.topics.produce(running.directory, ("T2", dumps({"acquirerId": "second"})))
    page.wait_for_selector("text=1 changes wait")
    assert "second" not in page.inner_text("[data-feed]")
    page.evaluate("getSelection().removeAllRanges()")
    page.wait_for_selector("text=second")


def test_hostile_values_run_nothing(visitor: Visitor, running: Running) -> None:
    pairs = [(key, dumps({"text": key, key: [key]})) for key in HOSTILE]
    here = f"/servers/0/directories/{running.directory}"
    visitor.page.goto(f"{here}/live")
    dialogs: list[Any] = []
    visitor.page.on("dialog", lambda dialog: dialogs.append(dialog))  # noqa: PLW0108 (the driver marks it)
    running.topics.produce(running.directory, *pairs)
    visitor.page.wait_for_selector("text=onerror")
    for key in HOSTILE:
        visitor.page.goto(here)
        visitor.page.fill("form:first-of-type input[name=key]", key.replace("\x00", ""))
        visitor.page.keyboard.press("Enter")
        visitor.page.wait_for_selector("h1")
    assert dialogs == []
    assert [message for message in visitor.messages if "404" not in message] == []


def test_an_outage_shows_on_an_open_page_and_ends(visitor: Visitor, running: Running) -> None:
    page = visitor.page
    assert "✓" in page.evaluate("getComputedStyle(document.querySelector('.badge.good'), '::before').content")
    running.serving.stop()
    page.wait_for_selector(f"text=127.0.0.1:{running.serving.port} was not reached", timeout=5000)


def test_jobs_are_cancelled_by_keyboard_and_the_back_button_works(visitor: Visitor, running: Running) -> None:
    page = visitor.page
    page.goto("/jobs")
    page.fill("input[name=type]", "invoice.send")
    page.keyboard.press("Enter")
    page.wait_for_selector("text=120 jobs match")
    assert "type=invoice.send" in page.url
    page.click("#list >> text=cancel")
    page.wait_for_selector("text=cancel 120 jobs")
    page.keyboard.press("Enter")
    page.wait_for_selector(".done")
    page.goto("/jobs?state=cancelled")
    page.wait_for_selector("text=120 jobs match")
    page.click("tbody a >> nth=0")
    page.wait_for_selector("text=Timeline")
    page.go_back()
    page.wait_for_selector("text=120 jobs match")


def test_two_tabs_act_without_harm(visitor: Visitor, running: Running) -> None:
    other = visitor.context.new_page()
    for page in (visitor.page, other):
        page.goto(f"/jobs/{running.jobs[0]}")
    for page in (visitor.page, other):
        page.click("text=cancel")
        page.wait_for_load_state()
    wait_until(lambda: "cancelled" in visitor.context.request.get(f"/jobs/{running.jobs[0]}").text(), 10, "the act")
