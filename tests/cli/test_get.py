"""``compactory get`` on Apache Kafka, and on a server that answers as ours will."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest

from tests.cli.conftest import NOBODY_HOME, Shell

TERMINAL = {"id": 2, "terminalId": "T2", "acquirerId": "Ä2", "isActive": True}


@pytest.fixture
def described(compactory: Shell, kafka: str, topic: str) -> Shell:
    """A folder whose compactory.toml describes the topic."""
    compactory.write(
        "compactory.toml",
        f'[kafka]\nbootstrap.servers = "{kafka}"\n'
        f'[directories.terminals]\ntopic = "{topic}"\nkey = "terminalId"\nactive = "isActive"\n',
    )
    return compactory


def test_people_see_the_value(described: Shell) -> None:
    outcome = described("get", "terminals", "T2")
    assert outcome.code == 0
    assert json.loads(outcome.out) == TERMINAL
    assert json.loads(outcome.err)["event"].startswith("bad record number 1 in directory terminals")


def test_programs_see_the_entry_as_one_object(described: Shell, topic: str) -> None:
    outcome = described("get", "terminals", "T2", "--json")
    assert outcome.json == {
        "key": "T2",
        "value": TERMINAL,
        "topic": topic,
        "partition": 0,
        "offset": 1,
        "timestamp_ms": 1_700_000_000_000,
    }
    assert outcome.out.count("\n") == 1


@pytest.mark.parametrize("key", ["T9", "T3"])
def test_a_key_that_is_missing_or_inactive_is_exit_code_1(described: Shell, key: str) -> None:
    outcome = described("get", "terminals", key)
    assert (outcome.code, outcome.out) == (1, "")
    assert outcome.err.splitlines()[-1].startswith(
        f"error: no entry '{key}' in directory 'terminals': 2 entries, looked up by field 'terminalId', such as 'T"
    )


def test_a_bare_topic_is_looked_up_by_the_records_key(compactory: Shell, kafka: str, topic: str) -> None:
    assert json.loads(compactory("get", topic, "2", "--kafka", kafka).out) == TERMINAL
    outcome = compactory("get", topic, "T2", "--kafka", kafka)
    assert outcome.code == 1
    assert "looked up by the record's key, such as '" in outcome.err


def test_a_bad_record_is_told_from_a_missing_key(compactory: Shell, kafka: str, topic: str) -> None:
    outcome = compactory("get", topic, "bad", "--kafka", kafka, "--json")
    assert outcome.code == 1
    assert outcome.error["error"] == "BadRecord"


def test_an_unknown_topic_is_answered_with_the_nearest(described: Shell, kafka: str, topic: str) -> None:
    outcome = described("get", topic + "x", "T1")
    assert outcome.code == 2
    assert outcome.err == f"error: topic '{topic}x' does not exist on Kafka at {kafka}; did you mean {topic}?\n"
    assert "did you mean terminals?" in described("get", "terminal", "T1").err


def test_a_broker_that_is_not_there_is_exit_code_3(compactory: Shell) -> None:
    outcome = compactory("get", "d", "k", "--kafka", NOBODY_HOME, "--json")
    assert outcome.code == 3
    assert outcome.error["system"] == "Kafka"
    assert NOBODY_HOME in outcome.error["message"]


class _Server(BaseHTTPRequestHandler):
    """Answers the paths of interfaces: an entry, problems of several kinds."""

    def do_GET(self) -> None:
        if self.path == "/v1/directories/my%20terminals/entries/T%2F2%20%C3%A4":
            self._answer(200, json.dumps(TERMINAL).encode(), {"Compactory-Offset": "terminal_acquirer:3:17"})
        elif self.path == "/v1/directories":
            shown = {"topic": "t", "state": "ready", "entries": 5, "lag": 0, "age_seconds": 0.5, "partitions": 3}
            listed = [{"name": "t", **shown, "bad_records": 0}, {"name": "tariffs", **shown, "bad_records": 1}]
            self._answer(200, json.dumps({"directories": listed}).encode())
        elif self.path == "/v1/status":
            self._answer(200, b"<html>sign in</html>")
        else:
            status = int(self.path.rpartition("/")[2])
            self._answer(status, json.dumps({"title": "No", "detail": f"detail of {status}"}).encode())

    def _answer(self, status: int, body: bytes, headers: dict[str, str] | None = None) -> None:
        self.send_response(status)
        for name, value in {**(headers or {}), "Content-Length": str(len(body))}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the name is the base class's
        """Say nothing."""


@pytest.fixture
def server() -> Iterator[str]:
    """Base URL of a server."""
    with HTTPServer(("127.0.0.1", 0), _Server) as http:
        thread = threading.Thread(target=http.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{http.server_port}"
        http.shutdown()
        thread.join()


def test_a_server_is_asked_where_one_is_given(compactory: Shell, server: str) -> None:
    outcome = compactory("get", "my terminals", "T/2 ä", COMPACTORY_URL=server)
    assert json.loads(outcome.out) == TERMINAL
    outcome = compactory("get", "my terminals", "T/2 ä", "--json", COMPACTORY_URL=server + "/")
    assert outcome.json == {
        "key": "T/2 ä",
        "value": TERMINAL,
        "topic": "terminal_acquirer",
        "partition": 3,
        "offset": 17,
        "timestamp_ms": None,
    }


@pytest.mark.parametrize(("status", "code"), [(404, 1), (502, 1), (401, 2), (403, 2), (503, 3), (504, 3)])
def test_what_a_server_refuses_has_an_exit_code(compactory: Shell, server: str, status: int, code: int) -> None:
    outcome = compactory("get", "d", str(status), COMPACTORY_URL=server)
    assert outcome.code == code
    told = f"error: detail of {status} (HTTP {status} from {server})"
    assert outcome.err.startswith(told)
    assert ("set COMPACTORY_HTTP_READ_TOKEN" in outcome.err) == (status == 401)


def test_a_page_of_another_server_is_told(compactory: Shell, server: str) -> None:
    outcome = compactory("source", "status", "--url", server)
    assert (outcome.code, outcome.err) == (3, f"error: {server} did not answer with JSON; check that address\n")


def test_a_server_that_is_not_there_is_exit_code_3_and_its_password_is_not_shown(compactory: Shell) -> None:
    outcome = compactory("get", "d", "k", COMPACTORY_URL=f"http://me:s3cr3t@{NOBODY_HOME}")
    assert outcome.code == 3
    assert f"http://{NOBODY_HOME} was not reached" in outcome.err
    assert "s3cr3t" not in outcome.err


def test_directories_of_a_server(compactory: Shell, server: str) -> None:
    outcome = compactory("directories", "--json", COMPACTORY_URL=server)
    assert outcome.code == 1, "one has bad records"
    assert [row["name"] for row in outcome.json["directories"]] == ["t", "tariffs"]
    assert "500 ms" in compactory("directories", COMPACTORY_URL=server).out


def test_named_directories_of_a_server(compactory: Shell, server: str) -> None:
    outcome = compactory("directories", "t", "--json", COMPACTORY_URL=server)
    assert outcome.code == 0, "the other one has bad records"
    assert [row["name"] for row in outcome.json["directories"]] == ["t"]
    unknown = compactory("directories", "tarifs", "u", "--json", COMPACTORY_URL=server)
    assert unknown.code == 2
    assert [problem.rpartition(" has ")[2] for problem in unknown.error["problems"]] == [
        "no directory 'tarifs'; did you mean tariffs?",
        "no directory 'u'; known are t, tariffs",
    ]
