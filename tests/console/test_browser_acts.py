"""Acts in Chromium with their effects in the servers, and outages of the servers while a page is open."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import psycopg
import pytest

from compactory import Directory
from compactory.kafka.client import Kafka
from compactory_api.http.access import Access, Tokens
from compactory_connectors.postgres.jdbc_url import parse_url
from compactory_connectors.postgres.operator_log import operator_log
from compactory_connectors.processors import Event, ProcessRunner, Refused, operators, processor
from compactory_connectors.sink.operators import failed_records
from compactory_console import ConsoleOptions
from tests.api.serving import Serving
from tests.console.conftest import TOKENS, Running, opened
from tests.console.visitor import Visitor
from tests.processors.harness import QUICK, committed
from tests.sink.conftest import bench  # noqa: F401 (a fixture)
from tests.sink.harness import Bench
from tests.sink.test_failed import REFUSES
from tests.source.workload import wait_until
from tests.stack.apache_kafka import ApacheKafka
from tests.stack.proxy import Proxy
from tests.store.topics import Topics

pytestmark = pytest.mark.proof


@contextmanager
def visited(browser: Any, **options: Any) -> Iterator[Visitor]:
    """Yield a visitor of a console with these options."""
    with opened(ConsoleOptions(**{"servers": [], "access": Access(TOKENS)} | options)) as site:
        visitor = Visitor(browser, site.url)
        yield visitor
        visitor.context.close()
        assert visitor.messages == []


def test_a_sink_is_paused_retried_dropped_and_moved(browser: Any, bench: Bench) -> None:  # noqa: F811
    bench.sql.execute(REFUSES)
    topic = bench.topic()
    bench.produce(topic, [("p", "bad 1"), ("q", "bad 2"), ("r", "3")])
    bench.sink(topic)
    bench.wait_for_end(topic)
    with visited(browser, postgres=parse_url(bench.url), kafka=bench.kafka) as visitor:
        page = visitor.page
        page.goto("/sinks")
        page.click("text=Drop >> nth=1")
        page.wait_for_selector("text=drop: 1 record.")
        assert [record.offset for record in failed_records(bench.sql, bench.name)] == [0]
        bench.sql.execute("ALTER TABLE effects DROP CONSTRAINT refuses")
        page.click("text=Retry")
        page.wait_for_selector("text=retry: 1 record.")
        wait_until(lambda: sorted(bench.values()) == ["3", "bad 1"], what="the record")
        page.click("button:text('Pause')")
        page.wait_for_selector(".badge:text('paused')")
        assert bench.rows("SELECT part, name FROM compactory.paused") == [("sink", bench.name)]
        bench.produce(topic, [("s", "4")])
        page.wait_for_selector("#list tbody td:nth-child(5):text-is('1')")
        page.click("button:text('Resume')")
        wait_until(lambda: "4" in bench.values(), what="the record after the pause")
        bench.sql.execute("DELETE FROM effects")
        page.fill("input[name=offset]", "2")
        page.click("button:text('Set')")
        page.wait_for_selector("text=continues at offset 2 of")
        bench.produce(topic, [("t", "5")])
        wait_until(lambda: bench.values() == ["3", "4", "5"], what="the records again")
        page.fill("input[name=offset]", "99")
        page.click("button:text('Set')")
        page.wait_for_selector("text=the log has offsets 0 to 5, and not 99")
        visitor.messages = [text for text in visitor.messages if "400" not in text]
    acts = [line.action for line in operator_log(bench.sql, "sink")]
    assert acts == ["set-offset", "resume", "pause", "retry", "drop"]
    assert operator_log(bench.sql, "sink")[0].who.startswith("console: the admin token")


def test_a_processor_is_paused_and_its_events_are_retried_and_dropped(
    browser: Any, kafka: str, unique: Callable[[str], str]
) -> None:
    topics = Topics(kafka, unique)
    pending, created, failed, name = topics.create(), topics.create(), topics.create(), unique("chain")
    fixed: set[str] = set()

    @processor(pending, name=name, created=created, failed=failed, retry=QUICK)
    def register(event: Event) -> Any:
        if event.key not in fixed:
            raise Refused("not yet")
        return {}

    cluster = Kafka(kafka)
    topics.produce(pending, ("a", "{}"), ("b", "{}"))
    with ProcessRunner(kafka, register):
        wait_until(lambda: bool(cluster.topics([f"compactory-process-{name}"])), what="the topic of the events")
        wait_until(
            lambda: [event.state for event in operators.stored_events(cluster, name)] == ["failed"] * 2, what="failures"
        )
        fixed.add("a")
        with visited(browser, kafka=cluster, processors=[name]) as visitor:
            page = visitor.page
            page.goto("/processors")
            page.check("tr:has(bdi:text-is('a')) input")
            page.click("button:text('Retry')")
            page.wait_for_selector("text=retry: 1 event.")
            wait_until(lambda: bool(dict(committed(kafka, created)).get("a")), what="the outcome")
            page.check("tr:has(bdi:text-is('b')) input")
            page.click("button:text('Drop')")
            page.wait_for_selector("text=drop: 1 event.")
            assert operators.stored_events(cluster, name) == []
            page.click("button:text('Pause')")
            page.wait_for_selector("text=pause: processor")
            fixed.add("c")
            topics.produce(pending, ("c", "{}"))
            page.click("button:text('Resume')")
            wait_until(lambda: bool(dict(committed(kafka, created)).get("c")), what="the event after the pause")
    acts = [line.action for line in operators.operator_log(cluster, name)]
    assert acts == ["resume", "pause", "drop", "retry"]


def test_servers_of_two_clusters_are_compared(
    browser: Any,
    kafka: str,
    unique: Callable[[str], str],
    serve: Callable[..., Serving],
) -> None:
    access, other = Access(Tokens(admin="service")), ApacheKafka(heap="320m")
    try:
        other.start()
        clusters = Topics(kafka, unique), Topics(other.address, unique)
        names = [topics.create() for topics in clusters]
        for topics, name, skipped, value in zip(clusters, names, (1, 2), (b'{"n":1}', b'{"n":2}'), strict=True):
            same = [(f"T{n}", b"{}") for n in range(50) if n != skipped]
            topics.produce(name, *same, ("different", value))
        first = serve(Directory("d", topic=names[0]), access=access)
        second = serve(Directory("d", topic=names[1]), access=access, kafka=other.address)
        urls = [f"http://127.0.0.1:{serving.port}" for serving in (first, second)]
        with visited(browser, servers=urls, token="service") as visitor:
            page = visitor.page
            page.wait_for_selector("a:text-is('d')")
            page.goto("/compare")
            page.select_option("[name=first]", "0")
            page.select_option("[name=second]", "1")
            page.click("main button")
            page.wait_for_selector("text=1 key missing at the second server, 1 extra, 1 different")
            rows = sorted(tuple(row.strip().split("\t")[:2]) for row in page.locator("tbody tr").all_inner_texts())
            assert rows == [("different", "different"), ("extra", "T1"), ("missing", "T2")]
            clusters[0].produce(names[0], ("T1", b"{}"), ("T2", None), ("different", b'{"n":2}'))
            wait_until(lambda: "T2" not in first.store["d"], what="the deletion")
            page.reload()
            page.wait_for_selector("text=equal")
        second.stop()
    finally:
        other.remove()


def test_postgres_is_taken_away_and_comes_back(browser: Any, migrated: str) -> None:
    with psycopg.connect(migrated) as connection:
        proxy = Proxy(connection.info.port)
    url = re.sub(r":\d+/", f":{proxy.port}/", migrated)
    try:
        with visited(browser, postgres=parse_url(url)) as visitor:
            page, jobs = visitor.page, visitor.context.new_page()
            page.wait_for_selector("tr:has-text('Postgres') >> text=reached")
            jobs.goto("/jobs")
            jobs.wait_for_selector("text=0 jobs match")
            proxy.freeze()
            page.wait_for_selector("tr:has-text('Postgres') >> text=not reached", timeout=5000)
            jobs.wait_for_selector("text=Postgres is not reached", timeout=5000)
            proxy.thaw()
            page.wait_for_selector("tr:has-text('Postgres') >> .badge.good", timeout=5000)
            jobs.wait_for_selector("text=0 jobs match", timeout=6000)
    finally:
        proxy.close()


def test_kafka_is_taken_away_and_comes_back(own_kafka: ApacheKafka, browser: Any, running: Running) -> None:
    with visited(
        browser,
        servers=[f"http://127.0.0.1:{running.serving.port}"],
        token="service",
        kafka=Kafka(running.topics.address),
    ) as visitor:
        page = visitor.page
        page.wait_for_selector("tr:has-text('Kafka') >> .badge.good")
        page.wait_for_selector(f"tr:has-text('{running.directory}') >> .badge.good")
        own_kafka.freeze()
        try:
            page.wait_for_selector("tr:has-text('Kafka') >> text=not reached", timeout=5000)
            page.goto(f"/servers/0/directories/{running.directory}/entry?key=T1")
            page.wait_for_selector("text=A1")
            page.goto("/")
        finally:
            own_kafka.thaw()
        page.wait_for_selector("tr:has-text('Kafka') >> .badge.good", timeout=5000)
