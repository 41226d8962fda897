"""What is seen of a load: a line on a terminal."""

from __future__ import annotations

import io
import os
import pty
import re
import subprocess
from collections.abc import Callable

import pytest
from rich.console import Console

from compactory.loading import Loading
from compactory_cli.views import progress
from compactory_cli.views.progress import LoadingLine, ProgressLines, lines_of_loads
from compactory_connectors.source.polling.reader import Load
from compactory_connectors.source.status.board import StatusBoard
from tests.api.serving import ask
from tests.cli.conftest import COMPACTORY, Shell
from tests.store.topics import Topics, eventually, send


@pytest.fixture
def topics(kafka: str, unique: Callable[[str], str]) -> Topics:
    return Topics(kafka, unique)


def test_it_tells_share_rate_and_time_left() -> None:
    told = progress._loading_text(Loading(read=250_000, total=1_000_000, seconds=0.5))
    assert told == "25%  250,000 of 1,000,000  500,000/s  2 s left"
    assert progress._loading_text(Loading(read=0, total=7, seconds=0.5)) == "0%  0 of 7  0/s"
    assert progress._loading_text(Loading(read=0, total=0, seconds=0.5)) == ""


def test_where_stderr_is_no_terminal_nothing_is_shown(capsys: pytest.CaptureFixture[str]) -> None:
    with LoadingLine("reading t") as line:
        line.update(Loading(read=1, total=7, seconds=0.1))
    assert capsys.readouterr() == ("", "")


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
        while b"6 of 7" not in seen:
            seen += os.read(ours, 4096)
        producer.commit_transaction(10)
    out, _ = process.communicate(timeout=60)
    os.close(ours)
    text = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", seen.decode(errors="replace"))
    assert re.search(rf"reading {topic} .*86%  6 of 7  [\d,]+/s", text)
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


def test_loads_of_sources_are_lines_while_they_last(monkeypatch: pytest.MonkeyPatch) -> None:
    """One a table; nothing is left of them when they end, nor anything shown where stderr is no terminal."""
    seen = io.StringIO()
    monkeypatch.setattr(progress, "error_output", lambda: Console(file=seen, force_terminal=True, width=120))
    board = StatusBoard("c")
    for table in ("public.a", "public.b"):
        board.add_table(table, table, adopted=False)
    with ProgressLines() as lines:
        lines.show(lines_of_loads([board.picture()]))
        assert seen.getvalue() == ""
        board.record_load("public.a", Load(rows=250_000, of=1_000_000, seconds=2.0))
        board.record_load("public.b", Load(rows=1, of=2, seconds=1.0))
        lines.show(lines_of_loads([board.picture()]))
        eventually(lambda: "250,000 of 1,000,000  125,000/s  6 s left" in seen.getvalue(), 5)
        assert "loading public.b" in seen.getvalue()
        board.record_poll("public.a", 1_000_000)
        board.record_poll("public.b", 2)
        lines.show(lines_of_loads([board.picture()]))
        assert "\x1b[?25h" in seen.getvalue(), "the terminal has its cursor again"
    plain = io.StringIO()
    monkeypatch.setattr(progress, "error_output", lambda: Console(file=plain))
    board.record_load("public.a", Load(rows=1, of=2, seconds=1.0))
    with ProgressLines() as lines:
        lines.show(lines_of_loads([board.picture()]))
    assert plain.getvalue() == ""
