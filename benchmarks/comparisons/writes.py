"""Writes of a directory mastered in Kafka, beside a bare producer behind the same server.

Unique values are checked, one partition. Servers are pinned to one core and the generator to another, as for lookups.
"""

from __future__ import annotations

import time
from urllib.error import HTTPError
from urllib.request import Request, urlopen

from benchmarks.comparisons.http_lookups import server
from benchmarks.programs.write_load import CLIENTS, ENTRIES, WRITES
from benchmarks.rows import Row
from benchmarks.stage import Comparison, Measured, Stage, Terms, python
from compactory.kafka.client import Kafka
from compactory_cli.stack.port import free_port

_BARE = "benchmarks.programs.bare.writes"
_SETTINGS = """
[directories.tenants]
topic = "{topic}"
mastered = "kafka"
unique = [["email"]]
indexes = [{{fields = ["email"], unique = true}}]
"""


def comparisons(_terms: Terms) -> dict[str, Comparison]:
    """Return what is compared, by name."""
    return {"writes": _writes}


def _writes(stage: Stage) -> Measured:
    kafka, ours, bare, fenced = stage.kafka, free_port(), free_port(), free_port()
    topic = f"bench-writes-{time.time_ns()}"
    for name in (topic, f"{topic}-bare", f"{topic}-fenced"):
        Kafka(kafka).create_topic(name, partitions=1, replication=1, config={"cleanup.policy": "compact"})
    with stage.folder() as folder:
        settings = folder / "compactory.toml"
        settings.write_text(_SETTINGS.format(topic=topic))
        options = ["--config", str(settings), "--kafka", kafka, "--listen", f"127.0.0.1:{ours}"]
        with (
            server(bare, "/", _BARE, str(bare), kafka, f"{topic}-bare"),
            server(fenced, "/", _BARE, str(fenced), kafka, f"{topic}-fenced", f"{topic}-fenced"),
            server(ours, "/readyz", "compactory_cli", "serve", *options),
        ):
            _await_writers(ours)
            programs = {
                kind: python("write_load", ours, kind) for kind in ("put", "bulk", "visible", "lookups", "beside")
            }
            bares = {f"bare {kind}": python("write_load", bare, kind) for kind in ("put", "bulk")}
            bares["fenced put"] = python("write_load", fenced, "put")
            taken = stage.alternate({**bares, **programs})
    rows = []
    for kind, what, least in (
        ("put", f"PUT, {CLIENTS} clients", 0.6),
        ("bulk", f"bulk write of {ENTRIES:,} entries", 0.4),
    ):
        ratio = taken.ratio(kind, f"bare {kind}")
        beside = f"bare producer {taken.median(f'bare {kind}', 'rate'):,.0f}/s"
        rows.append(Row(what=what, figure=f"{taken.median(kind, 'rate'):,.0f}/s", beside=beside, ratio=ratio,
                        wanted=f"≥ {least:g}", met=ratio >= least))  # fmt: skip
    ratio = taken.ratio("put", "fenced put")
    rows.append(Row(what=f"PUT, {CLIENTS} clients", figure=f"{taken.median('put', 'rate'):,.0f}/s",
                    beside=f"bare producer, in transactions {taken.median('fenced put', 'rate'):,.0f}/s",
                    ratio=ratio))  # fmt: skip
    for quantile, most in (("p50_ms", 5), ("p99_ms", 30)):
        found = taken.median("visible", quantile)
        what = f"an answered PUT is visible to a GET with its token, {quantile[:3]}"
        rows.append(Row(what=what, figure=f"{found:.2f} ms",
                        beside="–", ratio=None, wanted=f"≤ {most} ms", met=found <= most))  # fmt: skip
    ratio = taken.ratio("beside", "lookups")
    rows.append(Row(what=f"lookups while {WRITES:,} writes/s go in", figure=f"{taken.median('beside', 'rate'):,.0f}/s",
                    beside=f"idle {taken.median('lookups', 'rate'):,.0f}/s", ratio=ratio, wanted="≥ 0.8",
                    met=ratio >= 0.8))  # fmt: skip
    return Measured(rows, taken.rounds)


def _await_writers(port: int) -> None:
    """Return once a write is accepted: writers start after the store, which alone ``/readyz`` tells about."""
    place = f"http://127.0.0.1:{port}/v1/directories/tenants/entries/first"
    body, headers = b'{"email": "first@example.org"}', {"Content-Type": "application/json"}
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        try:
            urlopen(Request(place, body, headers, method="PUT")).close()
        except HTTPError as error:
            if error.code != 503:
                raise
            time.sleep(0.05)
        else:
            return
    raise TimeoutError("no write was accepted")
