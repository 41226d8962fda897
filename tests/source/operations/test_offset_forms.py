"""Whatever is in an offsets topic or file: it is understood or refused with ValueError, never anything else."""

from __future__ import annotations

import json
from contextlib import suppress
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from compactory.errors import ConfigError
from compactory_connectors.postgres.snapshot import Snapshot
from compactory_connectors.source.offsets.offset import SourceOffset, offset_key
from compactory_connectors.source.offsets.offset_parts import (
    Cursor,
    Edit,
    Identity,
    PartialPoll,
    Phase,
    RowPhase,
    SeenSnapshot,
)
from compactory_connectors.source.operations.connect_offsets import connector_offsets, find_offset

HORIZON = SeenSnapshot(Snapshot(5, 9, (6, 7)), frozenset({6}))
WHOLE = SourceOffset(
    identity=Identity(system_identifier="7", timeline=2, postmaster_start="a", statistics_start="b", table_oid=16384),
    topic=("t", "id"),
    shape="x",
    seen_snapshot=HORIZON,
    durable=HORIZON,
    partial_polls=(PartialPoll(HORIZON, RowPhase.DEACTIVATED, ("2024-01-01", None)),),
    sweep=True,
    partitions=(1, 2),
    new_partitions=(2,),
    timestamp=1,
    timestamp_nanos=2,
    incrementing=3,
    phase=Phase.REWINDING,
    rewind=Cursor(timestamp=5),
    edited=Edit("me", "now", "set"),
)

scalars = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=5)
documents = st.recursive(
    scalars, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3)
)


def test_an_offset_comes_back_as_it_was() -> None:
    assert SourceOffset.loads(WHOLE.dumps()) == WHOLE
    assert json.loads(SourceOffset(identity=WHOLE.identity).dumps())["edited"] is None


@given(st.sampled_from(sorted(json.loads(WHOLE.dumps()))), documents)
def test_a_field_of_something_else_is_refused_or_read(field: str, other: Any) -> None:
    with suppress(ValueError):
        SourceOffset.loads(json.dumps(json.loads(WHOLE.dumps()) | {field: other}).encode())


@given(st.binary(max_size=40) | documents.map(lambda document: json.dumps(document).encode()))
def test_any_bytes_are_refused_or_read(raw: bytes) -> None:
    with suppress(ValueError):
        SourceOffset.loads(raw)
    with suppress(ConfigError):
        connector_offsets({raw: raw, b'["a",{"table":"t"}]': raw}, "a", "here")


def test_the_form_of_keys_that_an_update_left_behind_counts_no_more() -> None:
    """The database came with pgjdbc 42.7.5 and went with the connector's version 10.9.5."""
    table = ("db", "public", "t")
    keys = (offset_key("a", *table), offset_key("a", *table[1:]))
    earlier = b'{"timestamp_nanos":1000000,"incrementing":9,"timestamp":1}'
    later = b'{"timestamp_nanos":2000000,"incrementing":1,"timestamp":2}'
    for values in ((earlier, later), (later, earlier)):
        stored: dict[bytes, bytes | None] = dict(zip(keys, values, strict=True))
        found = find_offset(connector_offsets(stored, "a", "here"), table)
        assert found is not None
        assert found.cursor == Cursor.from_micros(2_000, 1)
