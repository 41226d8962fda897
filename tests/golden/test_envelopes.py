"""What a store makes of records as the real Kafka Connect, Debezium and Confluent's AvroData wrote them."""

from __future__ import annotations

import json
from typing import Any

import pytest
from confluent_kafka.schema_registry import Schema, SchemaRegistryClient
from confluent_kafka.schema_registry.avro import AvroDeserializer
from confluent_kafka.serialization import MessageField, SerializationContext

from compactory import Directory, Index
from tests.golden.test_columns import GOLDEN
from tests.store.tables import Log


def test_connects_envelope_holds_what_it_writes_without_schemas() -> None:
    wrapped, plain = Log(Directory("d", envelope="connect", key="id")), Log(Directory("d", key="id"))
    compared = 0
    for line in (GOLDEN / "values.jsonl").read_text().splitlines():
        for _, without, with_schema in json.loads(line).get("records", ()):
            if without.startswith("{") and with_schema.startswith("{"):
                wrapped.put("k", with_schema)
                plain.put("k", without)
                assert wrapped.view == plain.view
                assert len(plain.view) == 1
                compared += 1
    assert compared > 50
    assert not list(wrapped.table.quarantine)


@pytest.mark.parametrize("loading", [False, True])
@pytest.mark.parametrize("schemas", [False, True])
def test_debeziums_envelope_ends_with_the_rows_of_the_table(schemas: bool, loading: bool) -> None:
    """Snapshot, insert, update, a primary key that changes, delete with its tombstone, an insert under the same key."""
    directory = Directory("d", envelope="debezium", key="id", active="active", indexes=[Index("acquirer")])
    log = Log(directory)
    by_topic_key = Log(Directory("d", envelope="debezium"))
    steps = [json.loads(line) for line in (GOLDEN.parent / "debezium.jsonl").read_text().splitlines()]
    steps = [step for step in steps if step["schemas"] == schemas]
    assert len(steps) == 6
    for step in steps:
        records = [(key.encode(), value and value.encode(), 1) for key, value in step["records"]]
        for each in (log, by_topic_key):
            if loading:
                each.load(records)
            else:
                for key, value, _ in records:
                    each.put(key, value)
        rows = {str(number): (acquirer, active) for number, acquirer, active in step["table"]}
        assert {key: row["acquirer"] for key, row in log.view.items()} == {
            number: acquirer for number, (acquirer, active) in rows.items() if active
        }
        assert sorted(str(row["id"]) for row in log.view.find(acquirer="A")) == sorted(
            number for number, (acquirer, active) in rows.items() if acquirer == "A" and active
        )
        found = {str(row["id"]): (row["acquirer"], row["active"]) for row in by_topic_key.view.values()}
        assert found == rows
    assert not list(log.table.quarantine)


def test_avro_of_a_schema_registry() -> None:
    """In the wire format of Confluent: magic byte, schema id, Avro. Keys, active and indexes work as in JSON."""
    client = SchemaRegistryClient.new_client({"url": "mock://envelopes"})
    deserialize = AvroDeserializer(client)
    context = SerializationContext("d", MessageField.VALUE)

    def unwrap(value: bytes) -> Any:
        return deserialize(value, context)

    log = Log(Directory("d", envelope=unwrap, key="id", indexes=[Index("id")], cache_decoded=True))
    read = 0
    for number, line in enumerate((GOLDEN / "registry.jsonl").read_text().splitlines()):
        golden = json.loads(line)
        schema = client.register_schema(f"{number}-value", Schema(golden["avro"], "AVRO"))
        for row in golden["rows"]:
            if row is not None:
                log.put("k", b"\0" + schema.to_bytes(4, "big") + bytes.fromhex(row))
                [(key, value)] = log.view.items()
                assert (str(value["id"]), log.view.find(id=int(key))) == (key, [value])
                read += 1
    assert read > 1_000
    log.put("k", b"\0\0\0\0\1")
    assert len(list(log.table.quarantine)) == 1
