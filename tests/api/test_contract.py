"""Requests generated from the OpenAPI document, good and bad: what it promises is what is answered."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from compactory import Directory, Index
from compactory_api.http.access import Access, Tokens
from compactory_mastered import WriteRules
from tests.api.serving import Serving
from tests.store.topics import Topics

ADMIN = "admin-me.0123456789"
EXAMPLES = pytest.mark.parametrize("examples", ["3", pytest.param("25", marks=pytest.mark.proof)])  # of an operation


@EXAMPLES
def test_generated_requests_get_documented_answers_and_no_server_error(
    serve: Callable[..., Serving], topics: Topics, tmp_path: Path, examples: str
) -> None:
    topic = topics.create()
    topics.produce(topic, *((str(n), json.dumps({"a": n % 7, "b": f"B{n % 3}"})) for n in range(50)), ("", "{}"))
    topics.produce(topic, ("bad", "{"))
    access = Access(Tokens(admin=ADMIN))
    serving = serve(Directory("terminals", topic=topic, indexes=[Index("a"), Index("a", "b")]), access=access)
    output = generated(
        serving, tmp_path, "--exclude-operation-id", "watch_changes", "--max-examples", examples
    )  # an answer that never ends
    assert "Tested: 22" in output, output


@EXAMPLES
def test_generated_writes_of_a_mastered_directory_get_documented_answers(
    serve: Callable[..., Serving], topics: Topics, tmp_path: Path, examples: str
) -> None:
    """Most of the other test's writes are of directories that do not exist; all of these reach the writer."""
    rules = WriteRules(schema={"required": ["a"]}, unique=(("a",),), key_from=("a",), outcomes=("done",))
    tenants = Directory("tenants", topic=topics.create(), indexes=[Index("a", unique=True)], rules=rules)
    serving = serve(tenants, Directory("done", topic=topics.create()), access=Access(Tokens(admin=ADMIN)))
    expected = [400, 401, 403, 404, 405, 406, 409, 412, 415, 422, 428, 429, "5xx"]  # If-Match is looked at first
    checks = f"[checks.negative_data_rejection]\nexpected-statuses = {expected}\n"
    (tmp_path / "schemathesis.toml").write_text(f'[parameters]\n"path.directory" = "tenants"\n{checks}')
    output = generated(serving, tmp_path, "--include-tag", "writes", "--max-examples", examples)
    assert "Tested: 7" in output, output


def generated(serving: Serving, folder: Path, *options: str) -> str:
    """Send generated requests; return what was told of them."""
    process = subprocess.run(
        [
            Path(sys.executable).with_name("st"),
            "run",
            f"http://127.0.0.1:{serving.port}/openapi.json",
            *("-H", f"Authorization: Bearer {ADMIN}"),
            *("--exclude-operation-id", "bulk_write_entries"),  # lines of JSON, which it can't make
            *options,
            *("--phases", "examples,coverage,fuzzing", "--mode", "all"),
            # That text fits its schema does not make it a token, a cursor or an index: 400 is right for those.
            *("--checks", "all", "--exclude-checks", "positive_data_acceptance"),
            "--no-color",
        ],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )
    assert process.returncode == 0, process.stdout + process.stderr
    assert serving.ask("/livez").status == 200
    return process.stdout
