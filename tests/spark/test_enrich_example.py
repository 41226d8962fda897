"""examples/spark/enrich on a real Kafka: enriched rows, misses and the next run."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.store.topics import Topics

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

PROGRAM = Path(__file__).parents[2] / "examples" / "spark" / "enrich" / "enrich.py"


def example(kafka: str, topics: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> Any:
    """The program, with topics of this test."""
    monkeypatch.setenv("COMPACTORY_KAFKA", kafka)
    text = PROGRAM.read_text()
    for name, topic in topics.items():
        assert f'"{name}"' in text
        text = text.replace(f'directory="{name}"', f'directory="{name}", topic="{topic}"')
        text = text.replace(f'"topic", "{name}"', f'"topic", "{topic}"')
    module = importlib.util.module_from_spec(importlib.util.spec_from_loader("enrich", None))  # type: ignore[arg-type]
    exec(compile(text, PROGRAM, "exec"), vars(module))
    return module


def test_transactions_get_their_acquirer(
    spark: SparkSession, kafka: str, unique: Callable[[str], str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    topics = Topics(kafka, unique)
    terminals, transactions = topics.create(2), topics.create(2)
    program = example(kafka, {"terminal_acquirer": terminals, "transactions": transactions}, monkeypatch)
    topics.produce(terminals, ("T1", '{"acquirerId": "A1", "isActive": true}'), ("T2", '{"isActive": false}'))
    for number, terminal in enumerate(("T1", "T2", "nobody"), 1):
        topics.produce(transactions, (f"{number}", f'{{"terminal_id": "{terminal}", "amount": {number}.50}}'))

    assert program.run(spark, str(tmp_path)) == {"rows": 3, "misses": 2}

    topics.produce(terminals, ("T1", '{"acquirerId": "A2", "isActive": true}'))
    topics.produce(transactions, ("4", '{"terminal_id": "T1", "amount": 4.50}'))
    assert program.run(spark, str(tmp_path)) == {"rows": 1, "misses": 0}
    enriched = spark.read.parquet(f"{tmp_path}/enriched").collect()
    assert {(str(row.amount), row.acquirerId) for row in enriched} == {("1.50", "A1"), ("4.50", "A2")}
    missed = spark.read.parquet(f"{tmp_path}/misses").collect()
    assert {row.terminal_id for row in missed} == {"T2", "nobody"}
