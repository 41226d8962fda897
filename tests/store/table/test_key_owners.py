"""Many who claim one lookup key: who answers is what a plain list of them says, and each costs the others little."""

from __future__ import annotations

import random
from collections import UserDict

import pytest
from hypothesis import given
from hypothesis import strategies as st

from compactory.codec.packed_record import pack_origin, recency
from compactory.table.key_owners import KeyOwners


class Counting(UserDict[bytes, bytes]):
    """A mapping that counts how often it is asked or told something."""

    asked = 0

    def __getitem__(self, key: bytes) -> bytes:
        self.asked += 1
        return super().__getitem__(key)

    def __setitem__(self, key: bytes, item: bytes) -> None:
        self.asked += 1
        super().__setitem__(key, item)


class Claimed:
    """Claims beside a plain model of them: owner → (name, cell)."""

    def __init__(self) -> None:
        self.current, self.candidates = Counting(), Counting()
        self.model: dict[int, tuple[bytes, bytes]] = {}
        self.reopen()
        self.records = 0

    @property
    def asked(self) -> int:
        return self.current.asked + self.candidates.asked

    def reopen(self) -> None:
        """As after a restart: what is known of the owners was kept on disk."""
        names = {cell: name for name, cell in self.model.values()}
        self.key_owners = KeyOwners(self.current, self.candidates, names.__getitem__)

    def put(self, owner: int, name: bytes, at: int) -> None:
        cell = b"%d" % owner + pack_origin(self.records, at)
        self.records += 1
        before, gone = self.model.get(owner, (b"", b""))
        self._settle(name, gone if before == name else None, cell)
        if gone and before != name:
            self._settle(before, gone, None)
        self.model[owner] = name, cell

    def remove(self, owner: int) -> None:
        if owner in self.model:
            self._settle(*self.model.pop(owner), None)

    def _settle(self, name: bytes, gone: bytes | None, cell: bytes | None) -> None:
        foretold = self.key_owners.current_after(name, gone, cell)
        self.key_owners.replace(name, gone, cell)
        assert self.current.get(name) == foretold

    def check(self) -> None:
        cells: dict[bytes, list[bytes]] = {}
        for name, cell in self.model.values():
            cells.setdefault(name, []).append(cell)
        assert dict(self.current) == {name: max(its, key=recency) for name, its in cells.items()}
        aside = {cell[-16:]: cell for its in cells.values() if len(its) > 1 for cell in its}
        assert dict(self.candidates) == aside, "kept aside only where there are several"
        several = {name: sorted(map(recency, its)) for name, its in cells.items() if len(its) > 1}
        assert self.key_owners._ranks_by_key() == several


@given(
    st.lists(st.tuples(st.integers(0, 12), st.sampled_from([b"", b"x", b"y", b"z"]), st.integers(0, 5)), max_size=120)
)
def test_the_newest_of_those_that_are_left_answers(steps: list[tuple[int, bytes, int]]) -> None:
    claimed = Claimed()
    for owner, name, at in steps:
        if name:
            claimed.put(owner, name, at)
        elif at == 5:
            claimed.reopen()
        else:
            claimed.remove(owner)
        claimed.check()


@pytest.mark.parametrize("order", ["rising", "falling", "shuffled"])
def test_thousands_cost_each_other_next_to_nothing(order: str, seeded: random.Random) -> None:
    """A field that is no key, given as one: each record and each deletion touches a few cells, whatever their order."""
    many = 5_000
    times = list(range(many))
    if order == "shuffled":
        seeded.shuffle(times)
    claimed = Claimed()
    for owner, at in enumerate(reversed(times) if order == "falling" else times):
        claimed.put(owner, b"x", at)
    owners = sorted(claimed.model, key=lambda owner: recency(claimed.model[owner][1]))
    for owner in reversed(owners[many // 2 :]):  # those who answer, one after the other
        claimed.remove(owner)
    claimed.check()
    for owner in owners[: many // 2]:
        claimed.put(owner, b"x", many)
        claimed.remove(owner)
    claimed.check()
    assert claimed.model == {}
    assert claimed.asked / many < 200
