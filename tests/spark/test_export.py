"""Exports on a real Kafka: what lookups find is what the files have."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import date
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psycopg
import pytest

from compactory import Directory
from compactory.errors import CompactoryError, ConfigError, Unreachable
from compactory_connectors.spark import export
from tests.store.topics import Topics, send

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from compactory_connectors.spark.exporting import ExportReport


@pytest.fixture
def topics(kafka: str, unique: Callable[[str], str]) -> Topics:
    return Topics(kafka, unique)


@pytest.fixture
def exported(spark: SparkSession, topics: Topics, tmp_path: Path) -> Callable[..., tuple[ExportReport, dict[str, Any]]]:
    """Exports a topic to a folder of the test; returns the report, and the rows of Parquet by key."""

    def run(topic: str, path: str = "full", active: str | None = "isActive", **options: Any) -> Any:
        directory = Directory(topic, active=active, envelope=options.pop("envelope", "none"))
        report = export(spark, directory, tmp_path / path, kafka=topics.address, **options)
        return report, by_key(spark.read.parquet(report.path)) if report.format == "parquet" else {}

    return run


def by_key(frame: DataFrame) -> dict[str, Any]:
    rows = [row.asDict(recursive=True) for row in frame.collect()]
    found = {row["_key"]: row for row in rows}
    assert len(found) == len(rows), "a key is there twice"
    return found


def fields(row: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in row.items() if not name.startswith("_")}


def test_the_newest_values_as_typed_columns(topics: Topics, exported: Callable[..., Any]) -> None:
    name = topics.create(3)
    topics.produce(name, ("T1", '{"id": 1, "isActive": true, "name": "old"}'), partition=0)
    topics.produce(name, ("T1", '{"id": 1, "isActive": true, "name": "жук 🪲\\n"}'), partition=0)
    topics.produce(name, ("T2", '{"id": 2, "isActive": false}'), ("gone", "{}"), ("gone", None), partition=1)
    topics.produce(name, ("T3", '{"id": 3.5, "tags": ["a", null], "at": {"lat": 1, "lon": null}}'), partition=1)
    topics.abort(name, ("T1", '{"id": "aborted"}'), ("T4", '{"id": 4}'), partition=0)

    report, rows = exported(name, keys="single")

    assert {key: fields(row) for key, row in rows.items()} == {
        "T1": {"id": 1.0, "isActive": True, "name": "жук 🪲\n", "tags": None, "at": None},
        "T3": {"id": 3.5, "isActive": None, "name": None, "tags": ["a", None], "at": {"lat": 1, "lon": None}},
    }
    assert (report.rows, report.bad, report.columns["at"]) == (2, 0, "struct<lat:bigint,lon:string>")
    assert (rows["T1"]["_partition"], rows["T1"]["_offset"], rows["T1"]["_value"]) == (0, 1, None)


def test_columns_have_the_types_of_the_connector(
    database: str, topics: Topics, exported: Callable[..., Any], tmp_path: Path
) -> None:
    """Connect writes decimals as Base64 and dates as numbers of days."""
    with psycopg.connect(database, autocommit=True) as db:
        db.execute("CREATE TABLE tariffs (code text, fee numeric(10,2), day date)")
        url, user = f"jdbc:postgresql://{db.info.host}:{db.info.port}/{db.info.dbname}", db.info.user
    name = topics.create()
    prefix = name.removesuffix("tariffs")
    file = tmp_path / "tariffs.json"
    settings = {
        "connector.class": "io.confluent.connect.jdbc.JdbcSourceConnector", "connection.url": url,
        "connection.user": user, "mode": "bulk", "table.whitelist": "tariffs", "topic.prefix": f"{prefix}-",
        "value.converter": "org.apache.kafka.connect.json.JsonConverter", "value.converter.schemas.enable": "false",
        "topic.creation.default.cleanup.policy": "delete", "topic.creation.default.partitions": "1",
        "topic.creation.default.replication.factor": "1",
    }  # fmt: skip
    file.write_text(json.dumps({"name": "tariffs", **settings}))
    topic = topics.create(name=f"{prefix}-tariffs")
    topics.produce(topic, ("a", '{"code": "a", "fee": "BNI=", "day": 20513}'))

    report, rows = exported(topic, active=None, connector=file)

    assert report.columns["fee"] == "decimal(10,2)"
    assert fields(rows["a"]) == {"code": "a", "fee": rows["a"]["fee"], "day": date(2026, 3, 1)}
    assert str(rows["a"]["fee"]) == "12.34"


def test_records_that_can_not_be_read_are_rows_without_fields(topics: Topics, exported: Any) -> None:
    name = topics.create(cleanup_policy="delete")
    topics.produce(name, ("text", "no JSON"), ("list", "[1]"), ("latin", b'{"id": "\xe9"}'), ("good", '{"id": 1}'))
    with pytest.raises(CompactoryError, match="3 records can't be read, more than 2"):
        exported(name, path="limited", max_bad=2)

    report, rows = exported(name)

    assert (report.rows, report.bad) == (4, 3)
    assert {key: (row["id"], row["_error"] is None, row["_value"]) for key, row in rows.items()} == {
        "text": (None, False, b"no JSON"),
        "list": (None, False, b"[1]"),
        "latin": (None, False, b'{"id": "\xe9"}'),
        "good": (1, True, None),
    }
    only_bad = topics.create()
    topics.produce(only_bad, ("a", "no JSON"))
    with pytest.raises(CompactoryError, match="none of the 1 records can be read"):
        exported(only_bad, path="bad")


def test_formats_partitions_and_positions(spark: SparkSession, topics: Topics, exported: Any, tmp_path: Path) -> None:
    name = topics.create()
    topics.produce(name, ("a", '{"n": 1, "country": "DE", "tags": ["x"]}'), timestamp=1000)
    topics.produce(name, ("a", '{"n": 2, "country": "NO", "tags": []}'), ("b", '{"n": 3, "country": "DE"}'))
    columns = "n bigint, country string, tags array<string>"
    report, rows = exported(name, columns=columns, partition_by="country", at="1970-01-01T00:00:01.5Z")
    assert (report.rows, rows["a"]["n"]) == (1, 1)
    assert [folder.name for folder in (tmp_path / "full").glob("country=*")] == ["country=DE"]
    with pytest.raises(ConfigError, match="exists: give another path"):
        exported(name, columns=columns)
    assert exported(name, columns=columns, mode="overwrite")[0].rows == 2
    for form in ("csv", "json", "orc"):
        report, _ = exported(name, form, columns=columns, format=form)
        back = spark.read.format(form).options(header=True, inferSchema=True).load(report.path)
        assert {row._key: (row.n, row.country) for row in back.collect()} == {"a": (2, "NO"), "b": (3, "DE")}


def test_an_open_transaction_is_waited_for_or_named(topics: Topics, exported: Any) -> None:
    name = topics.create()
    with topics.transaction() as producer:
        send(producer, name, [("a", '{"n": 1}')])
        with pytest.raises(Unreachable, match=r"open transactions after 1 s.*describe-producers"):
            exported(name, columns="n int", wait=1)
        producer.commit_transaction(10)
    assert exported(name, path="again", columns="n int")[0].rows == 1


def test_envelopes_are_opened(topics: Topics, exported: Any) -> None:
    name = topics.create()
    topics.produce(
        name,
        ("a", '{"schema": null, "payload": {"id": 1, "isActive": true}}'),
        ("b", '{"schema": null, "payload": {"id": 2, "isActive": false}}'),
    )
    report, rows = exported(name, envelope="connect")
    assert (report.rows, fields(rows["a"])) == (1, {"id": 1, "isActive": True})


def test_mistakes_are_refused(
    spark: SparkSession, topics: Topics, exported: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("COMPACTORY_KAFKA", raising=False)
    name = topics.create()
    with pytest.raises(ConfigError, match=r"which Kafka\? give export"):
        export(spark, name, "lake")
    with pytest.raises(ConfigError, match=r"not 'parqet'; did you mean parquet\?"):
        exported(name, format="parqet")
    with pytest.raises(ConfigError, match="delta"):
        exported(name, columns="n int", format="delta")
    with pytest.raises(ConfigError, match=r"no column 'contry'; did you mean country\?"):
        exported(name, columns="country string", partition_by="contry")
    with pytest.raises(ConfigError, match="are no list such as"):
        exported(name, columns="n")
    with pytest.raises(ConfigError, match="there is no option 'atx'"):
        exported(name, columns="n int", atx="1")
