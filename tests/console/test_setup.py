"""The set-up check: a prerequisite that is missing is named with its remedy."""

from __future__ import annotations

import re
from collections.abc import Callable

import psycopg

from compactory import Directory
from compactory_api.http.access import Access, Tokens
from compactory_connectors.postgres.jdbc_url import parse_url
from compactory_connectors.schema import Adoption, adopt, install
from compactory_console import ConsoleOptions
from tests.api.conftest import serve  # noqa: F401 (a fixture)
from tests.api.serving import Serving
from tests.console.conftest import TOKENS, opened
from tests.source.conftest import Bench, bench  # noqa: F401 (a fixture)
from tests.source.workload import wait_until


def checks(text: str) -> dict[str, tuple[str, str, str]]:
    """Return level, state and remedy of each prerequisite."""
    cells = re.findall(r"<tr><td>(.*?)</td><td>.*?badge (\w+).*?</td><td>(.*?)</td><td>(.*?)</td></tr>", text)
    return {
        re.sub("<.*?>", "", name): (level, re.sub("<.*?>", "", state), remedy) for name, level, state, remedy in cells
    }


def test_what_is_missing_is_named_with_its_remedy(
    bench: Bench,  # noqa: F811
    serve: Callable[..., Serving],  # noqa: F811
    unique: Callable[[str], str],
) -> None:
    deleting = unique("deleting")
    bench.kafka.create_topic(deleting, partitions=1, config={"cleanup.policy": "delete", "min.insync.replicas": "2"})
    bench.add("T1")
    bench.once()
    serving = serve(
        Directory("d", topic=bench.topic), Directory("e", topic=deleting), access=Access(Tokens(admin="service"))
    )
    connector = bench.connector()
    options = ConsoleOptions(
        servers=[f"http://127.0.0.1:{serving.port}"], token="service", access=Access(TOKENS), kafka=bench.kafka,
        postgres=parse_url(bench.url), connectors={"d": connector},
    )  # fmt: skip
    with opened(options) as site, site.client("reader") as client:
        wait_until(lambda: f"topic {deleting}" in client.get("/setup").text, 20, "the directories")
        missing = checks(client.get("/setup").text)
        assert missing["migrations"][0] == "bad"
        assert "compactory sql install" in missing["migrations"][2]
        assert missing["jobs"][0] == "warning"
        assert missing[f"topic {deleting}"][0] == "bad"
        assert "cleanup.policy=compact" in missing[f"topic {deleting}"][2]
        assert missing[f"topic {bench.topic}"][:2] == ("warning", "it is compacted; min.insync.replicas is 1")
        assert missing["connector of d"][0] == "warning"
        assert "no index on updated_date" in missing["connector of d"][1]
        assert missing["clocks"][0] == "good"
        install(bench.url)
        with psycopg.connect(bench.url, autocommit=True) as sql:
            adopt(sql, Adoption(table="terminal_acquirer", key=("id",)))
            sql.execute("CREATE INDEX ON terminal_acquirer (updated_date, id)")
            sql.execute("ALTER TABLE terminal_acquirer DISABLE TRIGGER USER")
            present = checks(client.get("/setup").text)
            parts = ("migrations", "jobs", "outbox", "sink", "Postgres")
            assert {name: present[name] for name in parts if present[name][0] != "good"} == {}
            assert present["table public.terminal_acquirer"][0] == "bad"
            assert "adopt" in present["table public.terminal_acquirer"][2]
            adopt(sql, Adoption(table="terminal_acquirer", key=("id",)))
        assert checks(client.get("/setup").text)["table public.terminal_acquirer"][0] == "good"
