"""Who ends and who is replaced among processes that serve together; children here serve nothing."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator

import pytest

from tests.store.topics import eventually

# A child says "first" or "again" and its pid, and ends after a signal with 0, or at once with what the command says.
PARENT = """
import os, signal, socket, subprocess, sys
import structlog, typer
from compactory_cli.context import forked_workers
signal.alarm(30)  # ends what hangs
structlog.configure(logger_factory=structlog.PrintLoggerFactory(sys.stderr))
first, again, early = sys.argv[1:4]
subprocess.Popen(["true"])  # ends as an orphan of a container does: nobody here knows it
forked_workers._REST = 0.01
if early:
    fork = os.fork
    def fork_and_get_a_signal():
        pid = fork()
        if pid:
            os.kill(os.getpid(), signal.SIGTERM)
        return pid
    os.fork = fork_and_get_a_signal
listening = [socket.create_server(("127.0.0.1", 0)) for _ in range(3)]
print("port", listening[0].getsockname()[1], flush=True)
try:
    [shared, own], replaces = forked_workers.fork_workers(2, listening)
except typer.Exit as ended:
    sys.exit(ended.exit_code)
assert shared is listening[0] and [each.fileno() for each in listening].count(-1) == 1
shared.close()
word, end = ("again", again) if replaces else ("first", first)
signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])
os.write(1, b"%b %d\\n" % (word.encode(), os.getpid()))  # at once, beside those of the others
sys.exit(int(end)) if end else signal.sigwait([signal.SIGTERM])
"""


class Parent:
    def __init__(self, first: str = "", again: str = "", early: str = "") -> None:
        command = [sys.executable, "-c", PARENT, first, again, early]
        pipe = subprocess.PIPE
        self.process = subprocess.Popen(command, stdout=pipe, stderr=subprocess.DEVNULL, text=True, process_group=0)
        self.port = self.told("port")

    def told(self, word: str) -> int:
        assert self.process.stdout is not None
        told, number = self.process.stdout.readline().split()
        assert told == word
        return int(number)

    def end(self, sign: int | None = signal.SIGTERM) -> int:
        if sign is not None:
            self.process.send_signal(sign)
        return self.process.wait(20)

    def close(self) -> None:
        self.process.kill()
        self.process.communicate()  # returns when no child has the pipes any more


@pytest.fixture
def parents() -> Iterator[list[Parent]]:
    found: list[Parent] = []
    yield found
    for parent in found:
        parent.close()


@pytest.mark.parametrize("sign", [signal.SIGKILL, signal.SIGTERM])
def test_a_child_that_ends_is_replaced_and_a_replacement_that_cannot_start_ends_nobody(
    sign: signal.Signals, parents: list[Parent]
) -> None:
    """As while Kafka is away: those that are ready serve on. The next replacement is tried, again and again."""
    parents.append(parent := Parent(again="3"))
    killed, other = parent.told("first"), parent.told("first")
    os.kill(killed, sign)
    for _ in range(3):
        parent.told("again")
    os.kill(other, 0)
    assert parent.end() == 0


def test_all_end_where_the_first_cannot_start(parents: list[Parent]) -> None:
    parents.append(parent := Parent(first="3"))
    assert parent.end(None) == 3


def test_a_signal_while_a_child_is_made_reaches_it(parents: list[Parent]) -> None:
    parents.append(parent := Parent(early="yes"))
    assert parent.end(None) == 0


def test_ctrl_c_is_one_signal_to_a_child_and_the_port_is_free_at_once(parents: list[Parent]) -> None:
    """A terminal sends it to all processes of the group; a child that is asked twice cuts requests off."""
    parents.append(parent := Parent())
    children = [parent.told("first") for _ in range(2)]
    assert parent.process.pid not in map(os.getpgid, children)
    for child in children:
        os.kill(child, signal.SIGSTOP)  # it has much to do
    try:
        os.killpg(parent.process.pid, signal.SIGINT)
        eventually(lambda: refused(parent.port))
    finally:  # or they would keep the pipe for ever
        for child in children:
            os.kill(child, signal.SIGCONT)
    assert parent.end(None) == 0


def refused(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port)).close()
    except ConnectionRefusedError:
        return True
    except ConnectionResetError:  # it was accepted by a port that closes
        return False
    return False
