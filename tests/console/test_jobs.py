"""The page of jobs over many jobs: counts, pages, the timeline."""

from __future__ import annotations

import re
import time

import psycopg

from compactory_console.processes import Process
from tests.console.conftest import Running

MANY = """
INSERT INTO compactory.jobs (type, state, place, payload, run_at, created_at, finished_at, last_error)
SELECT 'invoice.send', 'failed', 1, jsonb_build_object('order', n), now(), now(), now(), 'Traceback …'
  FROM generate_series(1, 200000) n
"""


def test_two_hundred_thousand_failed_jobs_are_shown_right(running: Running) -> None:
    with running.client() as client, psycopg.connect(running.database, autocommit=True) as sql:
        sql.execute("DELETE FROM compactory.jobs")
        sql.execute(MANY)
        sql.execute("ANALYZE compactory.jobs_live")
        ids = [row[0] for row in sql.execute("SELECT id FROM compactory.jobs ORDER BY id DESC LIMIT 150")]
        began = time.perf_counter()
        text = client.get("/jobs?state=failed").text
        assert time.perf_counter() - began < 2.0
        match = re.search(r"About ([\d,]+) jobs match", text)
        assert match is not None, text
        assert 150_000 <= int(match[1].replace(",", "")) <= 250_000
        assert ">scheduled</a> <strong>0</strong>" in text
        shown = [int(number) for number in re.findall(r'href="/jobs/(\d+)"', text)]
        for _ in range(2):
            address = re.search(r'href="([^"]+)">Older jobs', text)
            assert address is not None
            text = client.get(address[1].replace("&amp;", "&")).text
            shown += [int(number) for number in re.findall(r'href="/jobs/(\d+)"', text)]
        assert shown == ids
        question = client.get("/jobs/confirm?act=discard&state=failed").text
        assert re.search(r"<strong>about [12]\d\d,\d\d\d</strong>", question)


def test_the_timeline_has_the_counts_and_gaps(running: Running) -> None:
    with running.client() as client:
        series = client.get("/jobs/chart").json()["series"]
        assert [item["label"] for item in series] == ["scheduled", "running", "failed"]
        assert [item["values"][0] for item in series] == [120, 0, 0]
        counts = running.console.parts.job_counts
        counts.times.append(time.time())
        counts.samples.append({})
        assert client.get("/jobs/chart").json()["series"][0]["values"][-1] is None
    with running.client("till") as client:
        assert client.get("/jobs/chart").status_code == 403


def test_a_sample_counts_what_each_kind_of_worker_does() -> None:
    partition = {"topic": "t", "partition": 0}
    store = {"name": "store", "state": "new", "directories": [], "partitions": [{**partition, "position": None}]}
    sink = {"name": "sink s", "partitions": [{**partition, "offset": 8, "lag": 0, "set_aside": 3}]}
    executor = {"name": "jobs", "partitions": [0, 1], "runs": {"mail": {"succeeded": 20, "failed": 9}}}
    process = Process(0, "http://127.0.0.1:1")
    process.note({"version": "1", "live": True, "ready": True, "workers": [store, sink, executor]}, None)
    process.sample(None)
    executor["runs"] = {"mail": {"succeeded": 40, "failed": 9}}
    process.sample(None)
    first, second = process.samples
    assert (first.attempts, first.lag, second.changes) == (None, None, None)
    assert second.attempts is not None
    assert second.attempts > 0
    assert [verdict.sentence for _, verdict in process.verdicts()][1] == "3 set aside: they need somebody."
