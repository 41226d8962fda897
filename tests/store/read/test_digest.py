"""Digests of contents: their definition is fixed, holds in SQL as well, and does not depend on the order."""

from __future__ import annotations

import random

import psycopg

from compactory.read.digest import RANGES, DirectoryDigest, RangeDigest, range_of, record_digest

# As decision 0020 has it.
IN_SQL = """
WITH records AS (SELECT * FROM unnest(%s::bytea[], %s::bytea[]) AS r (key, value)),
     hashed AS (SELECT get_byte(sha256(key), 0) AS range,
                       encode(sha256(int4send(length(key)) || key || value), 'hex') AS digest
                  FROM records)
SELECT range, count(*)::int,
       mod(mod(sum(('x' || substr(digest, 1, 16))::bit(64)::int8), 2::numeric ^ 64) + 2::numeric ^ 64, 2::numeric ^ 64),
       mod(mod(sum(('x' || substr(digest, 17, 16))::bit(64)::int8), 2::numeric ^ 64) + 2::numeric ^ 64, 2::numeric ^ 64)
  FROM hashed GROUP BY range
"""


def directory(records: dict[bytes, bytes]) -> DirectoryDigest:
    digest = DirectoryDigest()
    for key, value in records.items():
        digest.add(range_of(key), RangeDigest.of([record_digest(key, value)]))
    return digest


def made(seeded: random.Random) -> dict[bytes, bytes]:
    return {seeded.randbytes(seeded.randint(0, 20)): seeded.randbytes(seeded.randint(0, 200)) for _ in range(2000)}


def test_the_definition_does_not_change() -> None:
    assert range_of(b"T1") == 31
    assert record_digest(b"T1", b'{"terminalId":"T1"}').hex() == "c14a215287641df85fdded62c47f0d6c"
    total = directory({b"T1": b"a", b"T2": b"b"}).total
    assert (total.count, str(total)) == (2, "49385aff630ec977e68fbaee34db6976")


def test_postgres_computes_the_same(database: str, seeded: random.Random) -> None:
    records = made(seeded)
    with psycopg.connect(database) as connection:
        rows = connection.execute(IN_SQL, [list(records), list(records.values())]).fetchall()
    found = {number: RangeDigest(count, int(high), int(low)) for number, count, high, low in rows}
    assert [found.get(number, RangeDigest()) for number in range(RANGES)] == directory(records).ranges


def test_neither_order_nor_parts_matter_and_every_change_shows(seeded: random.Random) -> None:
    records = made(seeded)
    whole = directory(records)
    names = list(records)
    seeded.shuffle(names)
    half = len(names) // 2
    parts = [directory({key: records[key] for key in some}) for some in (names[:half], names[half:])]
    for number, digest in enumerate(parts[1].ranges):
        parts[0].add(number, digest)
    assert parts[0].ranges == whole.ranges
    assert not whole.differing(parts[0])
    key = names[0]
    assert whole.differing(directory({**records, key: records[key] + b"!"})) == [range_of(key)]
    assert whole.differing(directory({name: records[name] for name in names[1:]})) == [range_of(key)]
    assert record_digest(b"ab", b"c") != record_digest(b"a", b"bc")
