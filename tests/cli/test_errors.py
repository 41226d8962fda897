"""``compactory errors`` on Apache Kafka and on a server of ours; directories of a server that are old."""

from __future__ import annotations

import base64
from collections.abc import Callable, Iterator

import pytest

from compactory import Directory, GlobalStore, StoreState
from compactory_api.http.access import Access, Tokens
from tests.api.serving import Serving
from tests.cli.conftest import Shell
from tests.store.topics import Topics, eventually

READ, ADMIN = "read-me.0123456789", "admin/me+0123456789=="


@pytest.fixture
def topics(kafka: str, unique: Callable[[str], str]) -> Topics:
    return Topics(kafka, unique)


class Decoder:
    """Refuses what it does not know yet."""

    def __init__(self) -> None:
        self.known = {"good"}

    def __call__(self, value: bytes) -> str:
        if value.decode() not in self.known:
            raise ValueError(f"{value.decode()} is not known yet")
        return value.decode()


@pytest.fixture
def decoder() -> Decoder:
    return Decoder()


@pytest.fixture
def serving(kafka: str, topics: Topics, decoder: Decoder) -> Iterator[Serving]:
    """A server with two directories: three bad records in one, one in the other."""
    one, two = topics.create(), topics.create()
    topics.produce(one, ("a", "good"), ("a", "later"), ("b", "later"), ("c", "never"), timestamp=1_700_000_000_000)
    topics.produce(two, ("x", "{"))
    directories = [Directory("one", topic=one, decode=decoder), Directory("two", topic=two)]
    server = Serving(
        GlobalStore(kafka, directories, unusable_directory="serve"), Access(Tokens(read=READ, admin=ADMIN))
    )
    server.wait_ready()
    yield server
    server.stop()


@pytest.fixture
def admin(serving: Serving) -> dict[str, str]:
    return {"COMPACTORY_URL": f"http://127.0.0.1:{serving.port}", "COMPACTORY_HTTP_ADMIN_TOKEN": ADMIN}


def test_bad_records_of_topics_are_listed(compactory: Shell, kafka: str, topic: str) -> None:
    outcome = compactory("errors", topic, "--kafka", kafka, "--json")
    assert outcome.code == 0
    [found] = outcome.json["errors"]
    assert (found["directory"], found["topic"], found["partition"], found["offset"]) == (topic, topic, 0, 3)
    assert found["error"].startswith("DecodeError: the value is not JSON: ")
    assert base64.b64decode(found["key_base64"]) == b"bad"
    head, _, row = compactory("errors", topic, "--kafka", kafka).out.splitlines()
    assert head.split() == ["directory", "partition", "offset", "error", "written"]
    assert row.split()[:3] == [topic, "0", "3"]
    assert compactory("errors", f"{topic}:0:3", "--kafka", kafka, "--json").json["errors"] == [found]
    assert compactory("errors", f"{topic}:0:4", "--kafka", kafka).out == "no bad records\n"


def test_a_server_tells_the_admin_more(compactory: Shell, admin: dict[str, str]) -> None:
    read = {"COMPACTORY_URL": admin["COMPACTORY_URL"], "COMPACTORY_HTTP_READ_TOKEN": READ}
    shown = compactory("errors", **read)
    assert "ValueError" in shown.out
    assert "is not known yet" not in shown.out
    whole = compactory("errors", "one", **admin)
    assert "ValueError: never is not known yet" in whole.out
    assert "2023-11-14 22:13:20 UTC" in whole.out
    everything = compactory("errors", "--json", **admin).json
    assert (len(everything["errors"]), everything["outstanding"]) == (4, 4)
    assert len(compactory("errors", "one", "--json", **admin).json["errors"]) == 3
    unknown = compactory("errors", "three", "four:0:0", "--json", **admin)
    assert (unknown.code, len(unknown.error["problems"])) == (2, 2)
    refused = compactory("errors", "--retry", **read)
    assert refused.code == 2
    assert "COMPACTORY_HTTP_ADMIN_TOKEN" in refused.err


def test_a_server_retries_and_skips(
    compactory: Shell, admin: dict[str, str], serving: Serving, decoder: Decoder
) -> None:
    """Guarantee 4: over the API and the command line; what is bad still makes exit code 1."""
    left = compactory("errors", "--retry", **admin)
    assert (left.code, left.out) == (1, "0 applied, 4 outstanding\n")
    decoder.known.add("later")
    some = compactory("errors", "one", "--retry", "--json", **admin)
    assert (some.code, some.json) == (1, {"done": 2, "outstanding": 2})
    assert serving.store["one"] == {"a": "later", "b": "later"}
    outcome = compactory("errors", "--skip", "one:0:3", **admin)
    assert (outcome.code, outcome.out) == (0, "1 dropped, 1 outstanding\n")
    assert "c" not in serving.store["one"]
    assert compactory("errors", "two", "--skip", "--json", **admin).json == {"done": 1, "outstanding": 0}
    assert compactory("errors", **admin).out == "no bad records\n"
    assert compactory("errors", "--retry", **admin).code == 0


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (["--retry", "--skip", "d"], "contradict"),
        (["--retry"], "set COMPACTORY_URL"),
        (["--skip", "d"], "set COMPACTORY_URL"),
        ([], "[directories.NAME] in compactory.toml"),
    ],
)
def test_what_can_not_be_meant_is_refused(compactory: Shell, kafka: str, arguments: list[str], problem: str) -> None:
    outcome = compactory("errors", *arguments, "--kafka", kafka)
    assert outcome.code == 2
    assert problem in outcome.err


def test_skipping_everything_takes_a_name(compactory: Shell) -> None:
    outcome = compactory("errors", "--skip", COMPACTORY_URL="http://127.0.0.1:1")
    assert outcome.code == 2
    assert "name directories" in outcome.err


def test_directories_of_a_server_say_why_they_are_old(
    compactory: Shell, admin: dict[str, str], serving: Serving, topics: Topics
) -> None:
    topics.delete(serving.store["two"].directory.topic)
    eventually(lambda: serving.store.state is StoreState.STALE, 30)
    lines = compactory("directories", **admin).out.splitlines()
    assert [line.split()[0] for line in lines if " stale " in line] == ["two"]
    assert "two is old: the topic does not exist any more" in lines
