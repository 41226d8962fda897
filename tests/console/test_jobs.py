"""The page of jobs over many jobs: counts, pages, the timeline."""

from __future__ import annotations

import re
import time

import psycopg

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
