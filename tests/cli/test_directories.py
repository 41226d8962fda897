"""``compactory directories`` on Apache Kafka."""

from __future__ import annotations

from tests.cli.conftest import Shell

TOML = """
[kafka]
bootstrap.servers = "{kafka}"
[directories.terminals]
topic = "{topic}"
key = "terminalId"
active = "isActive"
[directories.by_id]
topic = "{topic}"
"""


def test_all_of_the_file_are_loaded_and_told_about(compactory: Shell, kafka: str, topic: str) -> None:
    compactory.write("compactory.toml", TOML.format(kafka=kafka, topic=topic))
    outcome = compactory("directories", "--json")
    assert outcome.code == 1, "there are bad records"
    terminals, by_id = outcome.json["directories"]
    assert terminals.pop("load_seconds") > 0
    common = {"topic": topic, "partitions": 1, "lag": 0, "bad_records": 1, "unusable": None}
    assert terminals == {"name": "terminals", "entries": 2, **common}
    assert by_id.pop("load_seconds") > 0
    assert by_id == {"name": "by_id", "entries": 3, **common}

    outcome = compactory("directories")
    head, _, first, second = outcome.out.splitlines()
    assert head.split("  ")[0] == "name"
    for title in ("topic", "entries", "partitions", "lag", "bad records", "load time"):
        assert title in head
    assert first.split()[:6] == ["terminals", topic, "2", "1", "0", "1"]
    assert second.split()[:6] == ["by_id", topic, "3", "1", "0", "1"]


def test_a_typo_in_the_key_is_told(compactory: Shell, kafka: str, topic: str) -> None:
    """Guarantee 1: nobody takes a directory none of whose records is usable for an empty one."""
    compactory.write("compactory.toml", TOML.format(kafka=kafka, topic=topic).replace("terminalId", "terminalID"))
    outcome = compactory("directories", "terminals")
    assert outcome.code == 1
    assert "terminals: 0 of 3 records usable: key field 'terminalID' is missing" in outcome.out
    assert "did you mean 'terminalId'?" in outcome.out


def test_bare_topics_can_be_named(compactory: Shell, kafka: str, topic: str) -> None:
    [found] = compactory("directories", topic, "--kafka", kafka, "--json").json["directories"]
    assert (found["name"], found["entries"]) == (topic, 3)


def test_every_unknown_name_is_told(compactory: Shell, kafka: str, topic: str) -> None:
    outcome = compactory("directories", topic + "x", topic + "y", "--kafka", kafka, "--json")
    assert outcome.code == 2
    assert len(outcome.error["problems"]) == 2
    assert all(problem.endswith(f"did you mean {topic}?") for problem in outcome.error["problems"])


def test_with_none_named_the_remedy_is(compactory: Shell, kafka: str) -> None:
    outcome = compactory("directories", "--kafka", kafka)
    assert outcome.code == 2
    assert "[directories.NAME] in compactory.toml" in outcome.err
