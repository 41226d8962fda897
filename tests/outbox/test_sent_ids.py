"""Ids of a transaction as a record, and positions: pure."""

from __future__ import annotations

import random

from compactory_connectors.outbox.sent_ids import SentIds
from compactory_connectors.postgres.position import Position


def test_any_ids_come_back(seeded: random.Random) -> None:
    for _ in range(200):
        ids = sorted(seeded.sample(range(1, 10 ** seeded.randint(3, 15)), seeded.randint(1, 400)))
        sent = SentIds(ids, "2026-01-01 00:00:00.123+00")
        assert SentIds.parse(sent.packed()) == sent


def test_a_position_goes_back_for_a_transaction_that_ran() -> None:
    position = Position.at(0, newest=10)
    position = position.after(running=[7], newest=20, last=None)  # 7 began before the first look
    assert (position.start, dict(position.running), position.reached) == (10, {7: 0}, 0)
    position = position.after(running=[7, 9], newest=30, last=None)
    assert (position.start, dict(position.running)) == (20, {7: 0, 9: 10})  # 9 was not there when 10 was the newest
    position = position.after(running=[9], newest=40, last=25)
    assert (position.start, position.reached) == (25, 10)
    assert position.after(running=[], newest=50, last=None).reached == 40
