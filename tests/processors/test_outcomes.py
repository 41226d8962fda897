"""A write over HTTP that waits for what a processor makes of it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

import pytest

from compactory import ConfigError, Directory
from compactory_api.http.access import Access, Scope
from compactory_client import AsyncClient, Client, Outcome
from compactory_connectors.processors import ProcessRunner
from compactory_mastered import WriteRules
from tests.api.conftest import serve  # noqa: F401 (a fixture)
from tests.api.serving import Serving
from tests.processors.harness import registration
from tests.store.topics import Topics

JSON = {"Content-Type": "application/json"}


def test_a_write_is_answered_with_its_outcome_or_where_to_ask_for_it(
    serve: Callable[..., Serving],  # noqa: F811
    kafka: str,
    unique: Callable[[str], str],
    tmp_path: Path,
) -> None:
    topics = Topics(kafka, unique)
    pending, created, failed = (topics.create() for _ in range(3))
    rules = WriteRules(outcomes=("good", "bad"), key_from=("email",))
    tenants = Directory("tenants", topic=pending, rules=rules)
    serving = serve(
        tenants, Directory("good", topic=created), Directory("bad", topic=failed), access=Access(anonymous=Scope.WRITE)
    )
    made = serving.entry("tenants", "a%2Fb", method="PUT", body=b'{"n": 1}', headers=JSON)
    assert (made.status, made.json) == (202, {"n": 1})
    status = made.headers["compactory-status"]
    assert serving.ask(status).json["state"] == "pending"
    with ProcessRunner(kafka, registration(unique("chain"), pending, created, failed, str(tmp_path / "book"))):
        told = serving.ask(status, headers={"Prefer": "wait=30"}).json
        assert (told["state"], told["value"]["registered"]) == ("good", True)
        wait = {**JSON, "Prefer": "wait=30"}
        posted = serving.ask("/v1/directories/tenants/entries", "POST", body=b'{"email": "a@x"}', headers=wait)
        assert (posted.status, posted.headers["compactory-outcome"]) == (201, "good")
        assert posted.json["registered"]
        broke = serving.entry("tenants", "a%2Fb", method="PUT", body=b'{"broke": true}', headers=wait)
        assert (broke.status, broke.problem, broke.headers["compactory-outcome"]) == (424, "outcome-failed", "bad")
        assert {"etag", "compactory-offset", "compactory-status"} <= broke.headers.keys()
        assert "'a/b' was written, and its processing failed: no money" in broke.json["detail"]
        assert (broke.json["outcome"], broke.json["value"]["error"]) == ("written", "no money")
        assert serving.ask("/v1/directories/tenants/outcomes/a%2Fb").json["state"] == "bad"
        with Client(f"http://127.0.0.1:{serving.port}", wait=0.2) as client:
            entries = client.directory("tenants")
            written = entries.put("c", {"n": 2})
            outcome = entries.outcome(written, wait=30)
            assert (outcome.pending, outcome.state, outcome.value["registered"]) == (False, "good", True)

        async def outcome_of(key: str) -> Outcome:
            async with AsyncClient(f"http://127.0.0.1:{serving.port}", wait=0.2) as client:
                entries = client.directory("tenants")
                return await entries.outcome(await entries.put(key, {"n": 4}), wait=30)

        outcome = asyncio.run(outcome_of("d"))
        assert (outcome.pending, outcome.state, outcome.value["n"]) == (False, "good", 4)
    with Client(f"http://127.0.0.1:{serving.port}", wait=0.2) as client:
        entries = client.directory("tenants")
        assert entries.outcome(entries.put("c", {"n": 3}), wait=0.5).pending
        other = client.directory("good")
        with pytest.raises(ConfigError, match="no outcomes"):
            other.outcome(other.get("c"))
        assert serving.ask("/v1/directories/tenants/outcomes/nobody").status == 404
        assert serving.ask("/v1/directories/good/outcomes/a%2Fb").status == 404
