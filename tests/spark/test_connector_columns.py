"""The columns that a connector's file and its database say of a topic's values."""

from __future__ import annotations

import json
from pathlib import Path

import psycopg

from compactory_connectors.spark.datasource.connector_columns import columns_of_connector, with_connector
from compactory_connectors.spark.datasource.options import ReadOptions


def test_columns_have_the_types_of_the_table(database: str, tmp_path: Path) -> None:
    with psycopg.connect(database, autocommit=True) as db:
        db.execute("CREATE TABLE t (id int, name text, fee numeric(10,2), day date, since timestamptz, ok boolean)")
        url, user = f"jdbc:postgresql://{db.info.host}:{db.info.port}/{db.info.dbname}", db.info.user
    settings = {
        "connector.class": "io.confluent.connect.jdbc.JdbcSourceConnector",
        "connection.url": url,
        "connection.user": user,
        "mode": "bulk",
        "table.whitelist": "t",
        "topic.prefix": "",
        "value.converter": "org.apache.kafka.connect.json.JsonConverter",
        "topic.creation.default.cleanup.policy": "delete",
        "topic.creation.default.partitions": "1",
        "topic.creation.default.replication.factor": "1",
    }
    file = tmp_path / "t.json"
    file.write_text(json.dumps({"name": "t", **settings}))
    given = {"kafka.bootstrap.servers": "localhost:1", "topic": "t", "connector": str(file)}

    options = with_connector(ReadOptions.read(given))

    assert (options.envelope, options.base64_decimals) == ("connect", True)
    assert {column.name: column.dataType.simpleString() for column in columns_of_connector(options)} == {
        "id": "int",
        "name": "string",
        "fee": "decimal(10,2)",
        "day": "date",
        "since": "timestamp",
        "ok": "boolean",
    }
