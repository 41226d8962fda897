"""The console over HTTP: pages, acts with their effects, rights, and what keeps browsers safe."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any
from urllib.parse import quote

import psycopg
import pytest
from orjson import dumps

from compactory_console.app import _ACTS, _READS
from compactory_console.rendering import _tree
from tests.console.conftest import Running, follows
from tests.source.workload import wait_until

HOSTILE = ["<script>alert(1)</script>", "\u202eevil", "a\x00b", "ключ/ä?&#%", "'\"><img src=x onerror=alert(1)>"]


def pages_of(running: Running) -> dict[str, str]:
    """Return an address of each page."""
    places = {
        "{server:int}": "0", "{directory}": running.directory, "{connector}": "none", "{job:int}": str(running.jobs[0]),
    }  # fmt: skip
    addresses = {}
    for path in _READS:
        address = path
        for name, value in places.items():
            address = address.replace(name, value)
        addresses[path] = address
    addresses["/jobs/confirm"] += "?act=cancel"
    for part in ("entry", "row"):
        addresses[f"/servers/{{server:int}}/directories/{{directory}}/{part}"] += "?key=T1"
    return addresses


def test_each_page_is_whole_and_safe(running: Running) -> None:
    """Each page answers, asks no other host, and has no script or style of its own."""
    with running.client() as client:
        for path, address in pages_of(running).items():
            if path.endswith(("/events", "/live/overview", "/sources/{connector}")):
                continue
            answer = client.get(address)
            assert answer.status_code == 200, f"{address}: {answer.text}"
            policy = answer.headers["content-security-policy"]
            assert "default-src 'none'" in policy
            assert "unsafe" not in policy
            assert not re.search(r"<script(?![^>]*\bsrc=)|\bon\w+=\"|style=\"", answer.text), address
            assert not re.search(r"(?:src|href)=\"https?://(?!github\.com/)", answer.text), address
        assert client.get("/servers/0/sources/none").status_code == 404
        assert client.get("/servers/7/errors").status_code == 400
        assert client.get("/nothing").status_code == 404


def test_entries_are_found_by_key_prefix_and_index(running: Running) -> None:
    with running.client() as client:
        here = f"/servers/0/directories/{running.directory}"
        first = client.get(here).text
        assert "120 entries" in first
        keys = []
        address: str | None = here
        while address is not None:
            text = client.get(address).text
            keys += re.findall(r"entry\?key=(\w+)\"", text)
            match = re.search(r"href=\"([^\"]+cursor=[^\"]+)\">Next page", text)
            address = match[1].replace("&amp;", "&") if match else None
        assert sorted(keys) == sorted(f"T{n}" for n in range(120))
        assert len(re.findall(r"entry\?key=", client.get(f"{here}?prefix=T11").text)) == 11
        assert len(re.findall(r"entry\?key=", client.get(f"{here}?index=acquirerId&value=A0").text)) == 40
        assert "no index" in client.get(f"{here}?index=nothing&value=1").text.lower()
        entry = client.get(f"{here}/entry?key=T7").text
        assert "acquirerId" in entry
        assert client.get(f"{here}/entry?key=none").status_code == 404


def test_an_entry_shows_its_changes(running: Running) -> None:
    running.topics.produce(running.directory, ("T5", dumps({"acquirerId": "A9"})), ("T6", None))
    with running.client() as client:
        here = f"/servers/0/directories/{running.directory}/entry?key="
        wait_until(lambda: 'class="removed"' in client.get(f"{here}T5").text, 20, "the change")
        text = client.get(f"{here}T5").text
        assert re.search(r'class="removed".*nested', text)
        assert re.search(r'class="changed".*acquirerId', text)
        wait_until(lambda: "no such entry now" in client.get(f"{here}T6").text, 20, "the deletion")


def test_hostile_keys_and_values_are_only_text(running: Running) -> None:
    pairs = [(key, dumps({"text": key, key: [key]})) for key in HOSTILE]
    running.topics.produce(running.directory, *pairs, ("large", dumps({"text": "x" * 900_000})))
    view = running.serving.store[running.directory]
    wait_until(lambda: "large" in view, 20, "the records")
    with running.client() as client:
        for key in [*HOSTILE, "large"]:
            here = f"/servers/0/directories/{running.directory}"
            answer = client.get(f"{here}/entry?key={quote(key, safe='')}")
            assert answer.status_code == 200, key
            assert len(answer.content) < 200_000
            listing = client.get(f"{here}?prefix={quote(key[:3], safe='')}").text
            for text in (answer.text, listing):
                assert "<script>alert" not in text
                assert "<img" not in text
                assert "\u202e" not in text.replace(f"{key}", "") or key == "\u202eevil"
                assert "\x00" not in text


def test_deep_values_are_shown() -> None:
    value: Any = "end"
    for _ in range(200):
        value = [value]
    assert "end" in _tree(value)


def test_jobs_are_changed_after_a_question_and_noted(running: Running) -> None:
    with running.client() as client, psycopg.connect(running.database, autocommit=True) as sql:
        text = client.get("/jobs?type=invoice.send").text
        assert "120 jobs match" in text
        assert "Older jobs" in text
        question = client.get("/jobs/confirm?act=cancel&type=invoice.send").text
        assert "Cancel 120 jobs" in question
        csrf = running.csrf(client)
        one = client.post("/jobs", data={"csrf": csrf, "act": "run-now", "id": str(running.jobs[0])})
        assert one.status_code == 303
        done = client.post("/jobs", data={"csrf": csrf, "act": "cancel", "all": "yes", "type": "invoice.send"})
        assert done.status_code == 303
        assert "cancel: 120 jobs" in client.get("/jobs").text + client.get("/jobs").text
        states = sql.execute("SELECT DISTINCT state FROM compactory.jobs").fetchall()
        assert states == [("cancelled",)]
        log = client.get("/log").text
        assert "console: the admin token" in log
        client.post("/pauses", data={"csrf": csrf, "act": "pause", "kind": "type", "name": "invoice.send"})
        assert sql.execute("SELECT name FROM compactory.paused").fetchall() == [("invoice.send",)]
        client.post("/pauses", data={"csrf": csrf, "act": "resume", "kind": "type", "name": "invoice.send"})
        assert sql.execute("SELECT count(*) FROM compactory.paused").fetchone() == (0,)


def test_bad_records_are_dropped(running: Running) -> None:
    running.topics.produce(running.directory, ("T1", b"{"))
    with running.client() as client:
        wait_until(lambda: "has 1 bad" in client.get("/servers/0/errors").text, 20, "the bad record")
        record = dumps({"directory": running.directory, "partition": 0, "offset": 120}).decode()
        data = {"csrf": running.csrf(client), "act": "skip", "record": record}
        assert client.post("/servers/0/errors", data=data).status_code == 303
        assert running.serving.store.quarantine() == []


def test_a_reader_can_do_nothing(running: Running) -> None:
    """Each route that acts refuses the read token, and a client sees only its directories."""
    with running.client("reader") as client:
        csrf = running.csrf(client)
        for path in _ACTS:
            address = path.replace("{server:int}", "0").replace("{connector}", "none")
            record = dumps({"directory": running.directory, "partition": 0, "offset": 0}).decode()
            for act in (
                "retry",
                "skip",
                "drop",
                "pause",
                "resume",
                "restart",
                "approve",
                "cancel",
                "run-now",
                "set-offset",
            ):
                data = {
                    "csrf": csrf, "act": act, "record": record, "all": "yes", "sink": "s", "topic": "t", "type": "x",
                    "processor": "p", "table": "t", "kind": "sink", "name": "s",
                }  # fmt: skip
                assert client.post(address, data=data).status_code == 403, (address, act)
        assert client.get("/jobs/confirm?act=cancel").status_code == 403
        assert "needs the admin scope" in client.get(f"/jobs/{running.jobs[0]}").text
        assert "<button" not in client.get("/outbox").text.replace("<button>Sign out</button>", "")
    with running.client("till") as client:
        assert running.directory not in client.get("/").text
        assert client.get(f"/servers/0/directories/{running.directory}").status_code == 403
        assert client.get("/jobs").status_code == 403


@pytest.mark.parametrize(
    ("headers", "csrf"),
    [({"sec-fetch-site": "cross-site"}, True), ({"sec-fetch-site": "same-origin"}, False), ({}, False)],
)
def test_forms_of_other_pages_are_refused(running: Running, headers: dict[str, str], csrf: bool) -> None:
    with running.client() as client:
        data = {"csrf": running.csrf(client) if csrf else "guess", "act": "cancel", "all": "yes"}
        assert client.post("/jobs", data=data, headers=headers).status_code == 403


def test_nobody_gets_in_without_a_token(running: Running) -> None:
    with running.client(None) as client:
        for address in pages_of(running).values():
            answer = client.get(address)
            assert answer.status_code == 303, address
            assert answer.headers["location"].startswith("/sign-in")
        for path in _ACTS:
            assert client.post(path.replace("{server:int}", "0").replace("{connector}", "c")).status_code in (303, 401)
        wrong = client.post("/sign-in", content="token=wrong")
        assert wrong.status_code == 401
        assert "set-cookie" not in wrong.headers
        right = client.post("/sign-in", content="token=admin&next=//evil.example")
        assert right.headers["location"] == "/"
        cookie = right.headers["set-cookie"]
        assert "HttpOnly" in cookie
        assert "SameSite=strict" in cookie
        assert client.post("/sign-out", data={"csrf": running.csrf(client)}).status_code == 303
        assert client.get("/jobs").status_code == 303


def test_an_outage_is_said_and_ends(running: Running) -> None:
    with running.client() as client:
        assert "127.0.0.1:9 was not reached" in client.get("/").text
        with client.stream("GET", "/live/overview") as answer:
            lines = answer.iter_lines()
            first = next(line for line in lines if line.startswith("data: "))
            assert first
            running.serving.stop()
            port = running.serving.port
            wait_until(lambda: f"127.0.0.1:{port} was not reached" in client.get("/").text, 10, "the outage")
            assert any(f":{port} was not reached" in line for line in lines)
        assert client.get(f"/servers/0/directories/{running.directory}").status_code == 503


def test_no_change_is_missed_between_a_page_and_its_events(running: Running) -> None:
    live = f"/servers/0/directories/{running.directory}/live"

    def change(word: str) -> None:
        running.topics.produce(running.directory, ("T1", dumps({"acquirerId": word})))

    with running.client() as client:
        wait_until(lambda: follows(running.console, running.directory), 20, "the feed")
        [address] = re.findall(r'data-feed="([^"]+)"', client.get(live).text)
        for word in ("one", "two"):
            change(word)
            wait_until(lambda: word in client.get(live).text, 20, "the change")  # noqa: B023
        with client.stream("GET", address) as answer:
            numbers, words = _events(answer.iter_lines(), 2)
        assert words == ["one", "two"]
        change("three")
        wait_until(lambda: "three" in client.get(live).text, 20, "the change")
        with client.stream("GET", address, headers={"last-event-id": numbers[0]}) as answer:
            assert _events(answer.iter_lines(), 2)[1] == ["two", "three"]


def _events(lines: Iterator[str], count: int) -> tuple[list[str], list[str]]:
    """Return the ids of the next events, and the words in their rows."""
    ids: list[str] = []
    words: list[str] = []
    row = ""
    for line in lines:
        if line.startswith("id: "):
            ids.append(line.removeprefix("id: "))
        elif line.startswith("data: "):
            row += line
        elif not line and row:
            words.append(re.findall("one|two|three", row)[-1])
            row = ""
            if len(words) == count:
                break
    return ids, words


def test_the_first_visit_is_small(running: Running) -> None:
    with running.client() as client:
        client.headers["accept-encoding"] = "gzip"
        names = ("htmx.min.js", "uPlot.iife.min.js", "uPlot.min.css", "console.css", "console.js")
        sizes = []
        for address in ("/", *(f"/static/{name}" for name in names)):
            answer = client.get(address)
            assert answer.headers["content-encoding"] == "gzip", address
            sizes.append(int(answer.headers["content-length"]))
        assert sum(sizes) <= 60_000
