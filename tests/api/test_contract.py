"""Requests generated from the OpenAPI document, good and bad: what it promises is what is answered."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from compactory import Directory, Index
from compactory_api.protocol.access import Access, Tokens
from tests.api.serving import Serving
from tests.store.topics import Topics

ADMIN = "admin-me.0123456789"


def test_generated_requests_get_documented_answers_and_no_server_error(
    serve: Callable[..., Serving], topics: Topics, tmp_path: Path
) -> None:
    topic = topics.create()
    topics.produce(topic, *((str(n), json.dumps({"a": n % 7, "b": f"B{n % 3}"})) for n in range(50)), ("", "{}"))
    topics.produce(topic, ("bad", "{"))
    access = Access(Tokens(admin=ADMIN))
    serving = serve(Directory("terminals", topic=topic, indexes=[Index("a"), Index("a", "b")]), access=access)
    done = subprocess.run(
        [
            Path(sys.executable).with_name("st"),
            "run",
            f"http://127.0.0.1:{serving.port}/openapi.json",
            *("-H", f"Authorization: Bearer {ADMIN}"),
            *("--phases", "examples,coverage,fuzzing", "--mode", "all", "--max-examples", "25"),
            # That text fits its schema does not make it a token, a cursor or an index: 400 is right for those.
            *("--checks", "all", "--exclude-checks", "positive_data_acceptance"),
            "--no-color",
        ],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "Tested: 14" in done.stdout, done.stdout
    assert serving.ask("/livez").status == 200
