"""The page of an entry beside the row that it comes from."""

from __future__ import annotations

import re
from collections.abc import Callable

import httpx2
import pytest

from compactory import Directory
from compactory_api.http.access import Access, Tokens
from compactory_console import ConsoleOptions
from tests.api.conftest import serve  # noqa: F401 (a fixture)
from tests.api.serving import Serving
from tests.console.conftest import TOKENS, opened
from tests.source.conftest import Bench, bench  # noqa: F401 (a fixture)
from tests.source.workload import wait_until


def shown(client: httpx2.Client, key: str) -> str:
    return client.get(f"/servers/0/directories/d/row?key={key}").text


@pytest.mark.parametrize("key", ["terminalId", None])
def test_the_row_of_an_entry_is_shown_beside_it(
    bench: Bench,  # noqa: F811
    serve: Callable[..., Serving],  # noqa: F811
    key: str | None,
) -> None:
    bench.add("T1", "T2", "T3")
    bench.once()
    names = {"T1": "T1", "T2": "T2", "T3": "T3"} if key else {"T1": "1", "T2": "2", "T3": "3"}
    serving = serve(Directory("d", topic=bench.topic, key=key), access=Access(Tokens(admin="service")))
    options = ConsoleOptions(
        servers=[f"http://127.0.0.1:{serving.port}"], token="service", access=Access(TOKENS), kafka=bench.kafka,
        connectors={"d": bench.connector()},
    )  # fmt: skip
    with opened(options) as site, site.client("reader") as client:
        wait_until(lambda: "3 entries" in client.get("/servers/0/directories/d").text, 20, "the directory")
        text = shown(client, names["T1"])
        assert "equal</span> Table <bdi>public.terminal_acquirer</bdi>" in text
        assert bool(re.search(r'id="topic-key" hx-swap-oob="true"><bdi>1</bdi>', text)) is (key is not None)
        bench.sql.execute("UPDATE terminal_acquirer SET acquirer_id = 'B' WHERE terminal_id = 'T2'")
        text = shown(client, names["T2"])
        assert "different</span>" in text
        assert re.search(r'class="changed".*acquirerId.*<bdi>B</bdi>.*<bdi>A</bdi>', text)
        bench.sql.execute("DELETE FROM terminal_acquirer WHERE terminal_id = 'T3'")
        assert "No row has this key" in shown(client, names["T3"])
    with opened(options) as site, site.client("till") as client:
        assert client.get(f"/servers/0/directories/d/row?key={names['T1']}").status_code == 403
