"""What is seen of a load: a line on a terminal."""

from __future__ import annotations

import os
import pty
import re
import subprocess
from collections.abc import Callable

import pytest

from tests.api.serving import ask
from tests.cli.conftest import COMPACTORY, Shell
from tests.store.topics import Topics, eventually, send


@pytest.fixture
def topics(kafka: str, unique: Callable[[str], str]) -> Topics:
    return Topics(kafka, unique)


def test_a_terminal_sees_a_line_and_the_answer_alone_goes_to_stdout(
    compactory: Shell, kafka: str, topics: Topics
) -> None:
    """An open transaction holds the load as long as the test looks."""
    topic = topics.create()
    topics.produce(topic, *((f"k{number}", '{"n":1}') for number in range(6)))
    seen = bytearray()
    ours, theirs = pty.openpty()
    with topics.transaction() as producer:
        send(producer, topic, [("inside", "{}")])
        process = subprocess.Popen(
            [*COMPACTORY, "get", topic, "k1", "--kafka", kafka],
            cwd=compactory.folder,
            env={**compactory.environment, "TERM": "xterm"},
            stdout=subprocess.PIPE,
            stderr=theirs,
        )
        os.close(theirs)
        while not re.search(rb"6 of 7.* a second", seen):
            seen += os.read(ours, 4096)
        producer.commit_transaction(10)
    out, _ = process.communicate(timeout=60)
    os.close(ours)
    text = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", seen.decode(errors="replace"))
    assert re.search(rf"reading {topic}: 6 of 7 offsets \(86%\), [\d,]+ a second", text)
    assert (process.returncode, out.split()) == (0, [b"{", b'"n":', b"1", b"}"])


def test_a_server_waits_for_a_topic_where_the_file_says_so(compactory: Shell, kafka: str, topics: Topics) -> None:
    topic = topics.unique("store")
    compactory.write(
        "compactory.toml",
        f'[kafka]\nbootstrap.servers = "{kafka}"\n[store]\nmissing_topic = "wait"\nstall_timeout = 20\n'
        f'[directories.d]\ntopic = "{topic}"\n',
    )
    process = compactory.start("serve", "--listen", "127.0.0.1:0", "--log-format", "json")
    try:
        assert process.stderr is not None
        lines = iter(process.stderr.readline, "")
        port = next(int(found[1]) for line in lines if (found := re.search(r"http://127\.0\.0\.1:(\d+)", line)))
        blocked = {"topic": topic, "partition": None, "position": None, "target": None}
        eventually(lambda: ask(port, "/readyz").json["blocking"] == [blocked], 30)
        topics.create(name=topic)
        eventually(lambda: ask(port, "/readyz").status == 200, 30)
    finally:
        process.terminate()
        process.communicate(timeout=30)
    assert process.returncode == 0
