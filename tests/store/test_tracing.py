"""Spans where the service has OpenTelemetry, none of them on lookups; nothing where it has not."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import Callable, Iterator

import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import StatusCode

from compactory import AsyncGlobalStore, Directory, DirectoryWriter, GlobalStore, WaitTimeout
from tests.store.ingest.test_rebuild import recreate
from tests.store.topics import Topics, eventually

_exporter = InMemorySpanExporter()


@pytest.fixture(scope="module")
def provider() -> Iterator[TracerProvider]:
    """The process's one provider: it can be set only once; later tests leave no spans in it."""
    made = TracerProvider()
    made.add_span_processor(SimpleSpanProcessor(_exporter))
    trace.set_tracer_provider(made)
    yield made
    _exporter.shutdown()


@pytest.fixture
def spans(provider: TracerProvider) -> Iterator[Callable[..., list[ReadableSpan]]]:
    """``spans(name)`` gives the finished spans of that name."""
    _exporter.clear()
    yield lambda name: [span for span in _exporter.get_finished_spans() if span.name == f"compactory.{name}"]
    _exporter.clear()


Spans = Callable[..., list[ReadableSpan]]


def test_start_waits_and_writes_are_spans_under_the_callers(spans: Spans, topics: Topics, kafka: str) -> None:
    name = topics.create()
    topics.produce(name, ("secret-key", '{"n":1}'), ("b", "{}"))
    directory = Directory("d", topic=name, writable=True)
    with (
        trace.get_tracer("test").start_as_current_span("caller") as caller,
        GlobalStore(kafka, [directory]) as store,
        DirectoryWriter(kafka, directory) as writer,
    ):
        store.wait_for(writer.put("secret-key", {"n": 2}), *writer.put_many({"c": {}, "d": {}}))
        writer.delete("c")
        store.barrier()
        assert store["d"]["secret-key"] == {"n": 2}
        assert caller.get_span_context() is not None
    [start] = spans("start")
    assert start.attributes is not None
    assert start.attributes["compactory.topics"] == (name,)
    assert start.attributes["compactory.records"] == 2
    assert start.attributes["compactory.seconds"] == store.load_seconds
    [put], [many], [_deleted] = spans("put"), spans("put_many"), spans("delete")
    assert dict(put.attributes or {}) == {"compactory.topic": name, "compactory.records": 1}
    assert dict(many.attributes or {}) == {"compactory.topic": name, "compactory.records": 2}
    found = [span for span in _exporter.get_finished_spans() if span.name != "caller"]
    assert sorted(span.name for span in found) == sorted(
        f"compactory.{each}" for each in ("start", "put", "put_many", "wait_for", "delete", "barrier")
    )
    assert {span.parent.span_id for span in found if span.parent} == {caller.get_span_context().span_id}
    assert all(span.status.status_code is StatusCode.UNSET for span in found)
    assert not any("secret" in span.to_json() for span in found)


def test_a_wait_that_fails_is_an_error_without_its_text(spans: Spans, topics: Topics, kafka: str) -> None:
    name = topics.create()
    with GlobalStore(kafka, [name]) as store, topics.transaction() as producer:
        producer.produce(name, "{}", "a")
        producer.flush(10)
        with pytest.raises(WaitTimeout):
            store.barrier(timeout=0.3)
        producer.abort_transaction(10)
    [barrier] = spans("barrier")
    assert (barrier.status.status_code, barrier.status.description) == (StatusCode.ERROR, "WaitTimeout")
    assert not barrier.events


def test_a_rebuild_is_a_span_as_long_as_it_took(spans: Spans, topics: Topics, kafka: str) -> None:
    name = topics.create()
    topics.produce(name, ("a", "{}"))
    with GlobalStore(kafka, [name]) as store:
        assert spans("rebuild") == []
        recreate(topics, name)
        topics.produce(name, ("b", "{}"))
        eventually(lambda: store.ready and not store.stale() and spans("rebuild"), 30)
    [rebuild] = spans("rebuild")
    assert dict(rebuild.attributes or {}) == {"compactory.topic": name, "compactory.cause": "recreated"}
    assert rebuild.parent is None
    assert rebuild.start_time is not None
    assert rebuild.end_time is not None
    assert 0 < rebuild.end_time - rebuild.start_time < 30e9


def test_coroutines_have_them_too(spans: Spans, topics: Topics, kafka: str) -> None:
    name = topics.create()

    async def run() -> int:
        with trace.get_tracer("test").start_as_current_span("caller") as caller:
            async with AsyncGlobalStore(kafka, [name]) as store:
                (token,) = topics.produce(name, ("a", "{}"))
                await store.wait_for(token)
                await store.barrier()
        return caller.get_span_context().span_id

    caller = asyncio.run(run())
    found = [span for each in ("start", "wait_for", "barrier") for span in spans(each)]
    assert [span.parent.span_id if span.parent else None for span in found] == [caller] * 3


def test_without_the_package_functions_are_left_as_they_are() -> None:
    program = (
        "import sys; sys.modules['opentelemetry'] = None\n"
        "from compactory import GlobalStore, tracing\n"
        "assert not hasattr(GlobalStore.barrier, '__wrapped__')\n"
        "tracing.annotate(a=1); tracing.passed('rebuild', 1.0)\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True, timeout=60)
