"""Access to values: internal fields are masked, acts are noted, and no value is in an address or a log."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable

import psycopg
import pytest
from orjson import dumps

from compactory import Directory
from compactory_api.http.access import Access, Tokens
from compactory_console import ConsoleOptions
from compactory_mastered import WriteRules
from tests.api.conftest import serve  # noqa: F401 (a fixture)
from tests.api.serving import Serving
from tests.console.conftest import TOKENS, Running, follows, opened
from tests.source.workload import wait_until
from tests.store.topics import Topics

SECRET = "s3cr3t"


def test_internal_fields_are_on_no_page(
    kafka: str,
    unique: Callable[[str], str],
    serve: Callable[..., Serving],  # noqa: F811
) -> None:
    topics = Topics(kafka, unique)
    names = topics.create(), topics.create()
    rules = WriteRules(internal=("token",))
    servings = []
    for name, word in zip(names, ("one", "two"), strict=True):
        topics.produce(name, ("a", dumps({"word": word, "token": SECRET + word})))
        directory = Directory("d", topic=name, rules=rules, keep_changes=True)
        servings.append(serve(directory, access=Access(Tokens(admin="service"))))
    urls = [f"http://127.0.0.1:{serving.port}" for serving in servings]
    options = ConsoleOptions(servers=urls, token="service", access=Access(TOKENS))
    with opened(options) as site, site.client() as client:
        wait_until(lambda: follows(site.console, "d"), 20, "the feed")
        topics.produce(names[0], ("a", dumps({"word": "three", "token": SECRET})))
        here = "/servers/0/directories/d"
        wait_until(lambda: "three" in client.get(f"{here}/live").text, 20, "the change")
        compared = "/compare?directory=d&first=0&second=1"
        for address in (here, f"{here}/entry?key=a", f"{here}/row?key=a", f"{here}/live", compared):
            text = client.get(address).text
            assert SECRET not in text, address
        assert "different" in client.get(compared).text


def test_acts_are_noted_and_no_value_is_in_an_address_or_a_log(
    running: Running, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    running.topics.produce(running.directory, ("T1", dumps({"acquirerId": SECRET})), ("T2", b"{" + SECRET.encode()))
    with psycopg.connect(running.database, autocommit=True) as sql:
        sql.execute("SELECT compactory.enqueue('mail', jsonb_build_object('to', %s::text))", [SECRET])
    here = f"/servers/0/directories/{running.directory}"
    with running.client() as client:
        wait_until(lambda: "has 1 bad" in client.get("/servers/0/errors").text, 20, "the bad record")
        pages = [here, f"{here}/entry?key=T1", f"{here}/live", "/servers/0/errors", "/jobs", "/outbox", "/log", "/"]
        for address in pages:
            text = client.get(address).text
            addresses = re.findall(r'(?:href|action|hx-get|data-\w+)="([^"]*)"', text)
            links = [link for link in addresses if link.startswith("/")]
            assert links
            assert not [link for link in links if SECRET in link], address
        assert SECRET in client.get(here).text
        csrf, job = running.csrf(client), str(running.jobs[0])
        record = dumps({"directory": running.directory, "partition": 0, "offset": 121}).decode()
        acts = {
            "/jobs": {"act": "cancel", "id": job},
            "/pauses": {"act": "pause", "kind": "type", "name": "mail"},
            "/outbox": {"act": "retry", "topic": "t"},
            "/servers/0/errors": {"act": "skip", "record": record},
        }
        for path, fields in acts.items():
            caplog.clear()
            assert client.post(path, data={"csrf": csrf, **fields}).status_code == 303, path
            lines = [line.getMessage() for line in caplog.records if line.name == "compactory.console.audit"]
            assert len(lines) == 1, path
            assert lines[0].startswith(f"{path} by the admin token: "), lines
            assert SECRET not in caplog.text
