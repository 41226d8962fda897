"""A console over a real server on a real Kafka, and over a real Postgres with jobs and messages."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import httpx2
import psycopg
import pytest
import uvicorn
from orjson import dumps

from compactory import Directory, Index
from compactory.kafka.client import Kafka
from compactory_api.http.access import Access, Client, Scope, Tokens
from compactory_connectors.postgres.jdbc_url import parse_url
from compactory_console import Console, ConsoleOptions
from tests.api.conftest import serve  # noqa: F401 (a fixture)
from tests.api.serving import Serving
from tests.console.visitor import CHROMIUM, FLAGS, Visitor
from tests.source.workload import wait_until
from tests.store.topics import Topics

TOKENS = Tokens(
    read="reader",
    admin="admin",
    clients=(Client(name="till", token="till", scopes={"nothing": Scope.READ}),),
)


@dataclass
class Site:
    """A console in a thread."""

    url: str
    console: Console

    @contextmanager
    def client(self, token: str | None = "admin") -> Iterator[httpx2.Client]:
        """Yield a client that has signed in."""
        with httpx2.Client(base_url=self.url, timeout=20.0) as client:
            if token is not None:
                answer = client.post("/sign-in", content=f"token={token}", headers={"sec-fetch-site": "same-origin"})
                assert answer.status_code == 303, answer.text
            yield client

    def csrf(self, client: httpx2.Client) -> str:
        """Return the secret of the client's forms."""
        text = client.get("/compare").text
        return text.split('name="csrf" value="')[1].split('"')[0]


@dataclass
class Running(Site):
    """A console, and what it shows."""

    serving: Serving
    topics: Topics
    directory: str
    database: str
    jobs: list[int]


@contextmanager
def opened(options: ConsoleOptions) -> Iterator[Site]:
    """Run a console until the context ends."""
    console = Console(options)
    server = uvicorn.Server(uvicorn.Config(console, lifespan="on", log_config=None, timeout_graceful_shutdown=1))
    with socket.create_server(("127.0.0.1", 0)) as bound:
        thread = threading.Thread(target=server.run, args=([bound],))
        thread.start()
        try:
            yield Site(f"http://127.0.0.1:{bound.getsockname()[1]}", console)
        finally:
            server.should_exit = True
            thread.join(20)


@pytest.fixture
def running(
    kafka: str,
    migrated: str,
    unique: Callable[[str], str],
    serve: Callable[..., Serving],  # noqa: F811
) -> Iterator[Running]:
    topics = Topics(kafka, unique)
    name = topics.create()
    values = (dumps({"acquirerId": f"A{n % 3}", "nested": {"n": [n]}}) for n in range(120))
    topics.produce(name, *((f"T{n}", value) for n, value in enumerate(values)))
    serving = serve(
        Directory(name, indexes=[Index("acquirerId")], keep_changes=True),
        access=Access(Tokens(admin="service")),
    )
    options = ConsoleOptions(
        servers=[f"http://127.0.0.1:{serving.port}", "http://127.0.0.1:9"],
        token="service",
        access=Access(TOKENS),
        postgres=parse_url(migrated),
        kafka=Kafka(kafka),
    )
    with psycopg.connect(migrated, autocommit=True) as sql:
        enqueue = (
            "SELECT compactory.enqueue('invoice.send', jsonb_build_object('order', n)) FROM generate_series(1, 120) n"
        )
        jobs = [row[0] for row in sql.execute(enqueue)]
    with opened(options) as site:
        wait_until(lambda: follows(site.console, name), 20, "the feed of the directory")
        yield Running(site.url, site.console, serving, topics, name, migrated, jobs)


def follows(console: Console, directory: str) -> bool:
    server = console.parts.servers.processes[0]
    if server.directory(directory) is None:
        return False
    feed = console.parts.changes.feed(server, directory)
    return feed is not None and feed.has_begun


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    playwright = pytest.importorskip("playwright.sync_api", reason="pip install playwright")
    if CHROMIUM is None:
        pytest.skip("chromium is not installed (Debian: apt-get install chromium)")
    with playwright.sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        yield browser
        browser.close()


@pytest.fixture
def visitor(browser: Any, running: Running) -> Iterator[Visitor]:
    visitor = Visitor(browser, running.url)
    yield visitor
    visitor.context.close()
