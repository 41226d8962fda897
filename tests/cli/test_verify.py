"""``compactory verify`` with the article's connector, on real Postgres and Apache Kafka."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from confluent_kafka import Producer

from compactory_cli.stack.port import free_port
from compactory_cli.views.terminal import cut
from tests.cli.conftest import Article, Shell, in_process
from tests.cli.test_source import wait
from tests.cli.test_source_offsets import Offsets


@pytest.fixture
def published(compactory: Shell, article: Article, kafka: str, terminals: str) -> Iterator[Offsets]:
    made = Offsets(compactory, article, kafka, terminals)
    made.run()
    yield made
    made.sql.close()


def send(kafka: str, topic: str, *records: tuple[bytes, bytes | None]) -> None:
    producer = Producer({"bootstrap.servers": kafka, "partitioner": "murmur2_random"})
    for key, value in records:
        producer.produce(topic, value, key)
    assert producer.flush(10) == 0


def test_all_directories_are_compared_at_once(published: Offsets, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without arguments those of compactory.toml that name a connector; problems of all targets at once."""
    article = published.article
    shell_folder = article.path.parent
    monkeypatch.chdir(shell_folder)
    directory = f'[directories.%s]\ntopic = "{article.topic}"\n'
    kafka = f'[kafka]\nbootstrap.servers = "{published.kafka}"\n'
    connector = f'connector = "{article.path.name}"\n'
    toml = shell_folder / "compactory.toml"
    toml.write_text(kafka + directory % "a" + connector + directory % "b" + connector + directory % "plain")
    outcome = in_process("verify", *article.arguments[1:], "--json")
    assert outcome.code == 0, outcome.err
    assert [(topic["topic"], topic["equal"]) for topic in outcome.json["topics"]] == [(article.topic, True)] * 2
    send(published.kafka, article.topic, (b"3", None))
    outcome = in_process("verify", "a", article.path, *article.arguments[1:], "--json")
    assert (outcome.code, [topic["missing"] for topic in outcome.json["topics"]]) == (1, [1, 1])
    refused = in_process("verify", "plain", "nowhere")
    assert (refused.code, "2 problems" in refused.err) == (2, True)
    toml.write_text(kafka + directory % "plain")
    refused = in_process("verify")
    assert (refused.code, "none of compactory.toml names its connector" in refused.err) == (2, True)


def test_equal_different_and_not_caught_up(published: Offsets) -> None:
    words = ("verify", *published.article.arguments, "--kafka", published.kafka)
    outcome = in_process(*words)
    assert outcome.code == 0, outcome.err
    assert "equal" in outcome.out
    published.sql.execute("UPDATE terminal_acquirer SET acquirer_id = 'B' WHERE id = 1")
    outcome = in_process(*words)
    assert outcome.code == 3
    assert "1 pending: the table is ahead of what was published, and no source of the connector runs" in outcome.out
    send(
        published.kafka,
        published.article.topic,
        (b"2", b'{"secret":1}'),
        (b"3", None),
        (b"4", b"{"),
        (b"\xff\x00", b"\xfe"),
    )
    outcome = in_process(*words, "--json")
    assert outcome.code == 1
    [topic] = outcome.json["topics"]
    counts = {name: topic[name] for name in ("missing", "extra", "different", "pending", "changing", "expected")}
    assert counts == {"missing": 1, "extra": 1, "different": 2, "pending": 1, "changing": 0, "expected": 5}
    by_kind = {each["finding"]: each for each in topic["differences"] if each.get("key") != "4"}
    assert (by_kind["extra"]["key_base64"], by_kind["extra"]["found_base64"]) == ("/wA=", "/g==")
    assert by_kind["different"]["found"] == '{"secret":1}'
    assert '"terminalId":"T2"' in by_kind["different"]["expected"]
    shown = in_process(*words, "--no-values")
    assert shown.code == 1
    assert "secret" not in shown.out + shown.err
    assert "1 extra: lookups find them" in shown.out
    assert "another value" not in shown.out
    assert '{"secret":1}' in in_process(*words).out


def test_what_waits_for_a_paused_connector_is_said_to_wait_for_that(published: Offsets) -> None:
    words = (*published.article.arguments, "--kafka", published.kafka)
    assert in_process("source", "pause", *words).code == 0
    published.sql.execute("UPDATE terminal_acquirer SET acquirer_id = 'B' WHERE id = 1")
    outcome = in_process("verify", *words)
    assert outcome.code == 3
    assert "and the connector is paused: compactory source resume" in outcome.out
    assert in_process("verify", *words, "--json").json["topics"][0]["paused"] is True


def test_a_directory_by_its_name(published: Offsets) -> None:
    article = published.article
    (published.shell.folder / "compactory.toml").write_text(
        f'[directories.terminals]\ntopic = "{article.topic}"\nconnector = "{article.path}"\n'
        '[directories.other]\ntopic = "other"\n'
        f'[directories.wrong]\ntopic = "wrong"\nconnector = "{article.path}"\n'
    )
    config = ("--config", published.shell.folder / "compactory.toml", "--kafka", published.kafka)
    placeholders = article.arguments[1:]
    assert in_process("verify", "terminals", *placeholders, *config).code == 0
    outcome = in_process("verify", "other", *config)
    assert (outcome.code, "names no connector" in outcome.err) == (2, True)
    outcome = in_process("verify", "wrong", *placeholders, *config)
    assert (outcome.code, "not to topic 'wrong'" in outcome.err) == (2, True)
    outcome = in_process("verify", "nothing", *config)
    assert (outcome.code, "neither a directory" in outcome.err) == (2, True)


def test_a_long_value_is_cut_where_it_differs() -> None:
    one = b'{"a":"' + b"x" * 100 + b'","b":1,"c":"' + b"y" * 100 + b'"}'
    other = one.replace(b'"b":1', b'"b":2')
    assert '"b":1' in cut(one, other)
    assert '"b":2' in cut(other, one)
    assert len(cut(one, other)) <= 62
    assert cut(b"short", None) == "short"
    assert cut(None, b"x") == "–"
    assert cut(b"z" * 100, b"z" * 90).endswith("z" * 10)


def test_repair_without_a_source(published: Offsets) -> None:
    words = ("verify", *published.article.arguments, "--kafka", published.kafka)
    topic = published.article.topic
    send(published.kafka, topic, (b"1", b"{}"), (b"2", None), (b"ghost", b"{}"))
    before = published.stored()
    outcome = in_process(*words, "--repair", "--json")
    assert outcome.code == 0, outcome.err
    assert (outcome.json["repaired"], outcome.json["equal"]) == (3, True)
    assert published.stored() == before
    assert published.run() == 0


def test_a_repair_that_removes_too_much_needs_an_approval(published: Offsets) -> None:
    words = ("verify", *published.article.arguments, "--kafka", published.kafka, "--repair")
    send(published.kafka, published.article.topic, *((f"ghost{n}".encode(), b"{}") for n in range(20)))
    outcome = in_process(*words)
    assert outcome.code == 1
    assert "would remove 20 of 25 keys" in outcome.err
    assert "--approve" in outcome.err
    assert in_process(*words, "--approve").code == 0


def test_a_running_source_does_the_repair(published: Offsets, monkeypatch: pytest.MonkeyPatch) -> None:
    words = ("verify", *published.article.arguments, "--kafka", published.kafka)
    place = f"127.0.0.1:{free_port()}"
    source = published.shell.start(
        *("source", "run", *published.article.arguments, "--kafka", published.kafka, "--listen", place),
        COMPACTORY_HTTP_ADMIN_TOKEN="orders",
    )
    monkeypatch.setenv("COMPACTORY_HTTP_ADMIN_TOKEN", "orders")
    try:
        wait(lambda: in_process(*words, "--json").json["topics"][0]["sources"] != [])
        send(published.kafka, published.article.topic, (b"1", b"{}"), (b"2", None), (b"ghost", b"{}"))
        outcome = in_process(*words, "--repair")
        assert (outcome.code, "give --url" in outcome.err) == (2, True)
        outcome = in_process(*words, "--repair", "--url", f"http://{place}", "--json")
        assert outcome.code == 0, outcome.out + outcome.err
        assert (outcome.json["repaired"], outcome.json["equal"]) == (3, True)
        assert source.poll() is None
    finally:
        source.terminate()
        source.communicate(timeout=30)
