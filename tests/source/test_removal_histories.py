"""No living row's record is taken away, whatever becomes of table, topic, configuration. See ``history_removals``."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from typing import Any

import pytest

from compactory_connectors.kafka.producer_record import Copy
from compactory_connectors.source.offsets.offset import SourceOffset
from compactory_connectors.source.polling.rendering import Renderer
from compactory_connectors.source.removals import cleanup, sweeper
from compactory_connectors.source.removals.removal_guard import RemovalGuard
from compactory_connectors.source.runtime import offset_checks, repair
from compactory_connectors.source.verify.comparison import Comparison
from compactory_connectors.source.verify.key_ranges import KeyRanges
from tests.source.conftest import Bench
from tests.source.history_removals import RemovalHistory
from tests.source.poller import cleared
from tests.source.proof import LONG, PROOF


@pytest.fixture(autouse=True)
def in_a_hurry(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is looked at now and then is looked at in each round, and a few rows make several ranges."""
    for module, name in ((offset_checks, "TOPIC_CHECK_INTERVAL"), (cleanup, "_PARTITIONS_KNOWN"),
                         (cleanup, "_SWEEP_AGAIN"), (cleanup, "_READ_AGAIN")):  # fmt: skip
        monkeypatch.setattr(module, name, 0.0)
    monkeypatch.setattr(KeyRanges.__init__, "__kwdefaults__", {"size": 7})


@pytest.fixture
def histories(shared: str, kafka: str, unique: Callable[[str], str]) -> Callable[[int, int], int]:
    """Runs a history of so many steps by its number; how many removals were stopped in it."""

    def run(seed: int, steps: int) -> int:
        bench = Bench(cleared(shared), kafka, f"{unique('h')}-")
        history = RemovalHistory(bench, random.Random(seed))
        try:
            for _ in range(steps):
                history.step()
            history.settle()
            return history.status.removals_stopped_total
        except BaseException:
            print("\n".join(history.log))
            print(f"history {seed}")
            raise
        finally:
            history.close()
            bench.close()

    return run


@pytest.mark.parametrize("seconds", [pytest.param(2.0, id="short"), LONG])
def test_no_living_row_loses_its_record(
    histories: Callable[[int, int], int], seconds: float, seeded: random.Random
) -> None:
    """Guarantee 13: sweeps, repairs, other keys and partitioners under the same name, partition growth, tables that are
    restored, primary keys that change, inherited ids, and records of foreign producers. Nothing has to be stopped.
    """
    ends = time.monotonic() + seconds
    while time.monotonic() < ends:
        assert histories(seeded.getrandbits(32), seeded.choice([15, 30])) == 0


TAKE = Comparison.take_numbers


def _overlooking(comparison: Comparison, numbers: Any) -> None:
    TAKE(comparison, (number for number in numbers if number >> 5 & 3))


RECORDS = repair._records


def _without_some(*given: Any) -> Any:
    records, doubtful = RECORDS(*given)
    return [(key, None if number % 2 else value) for number, (key, value) in enumerate(records)], doubtful


MISTAKES: dict[str, tuple[Any, str, Any]] = {
    "a sweep overlooks rows": (Comparison, "take_numbers", _overlooking),
    "a poll asks for no living rows": (Renderer, "_living", lambda *_: set()),
    "a repair overlooks rows": (repair, "_records", _without_some),
}
BROKEN: dict[str, tuple[Any, str, Any]] = {
    "keys are taken for those of now": (SourceOffset, "for_keys", lambda offset, keys: offset),
    "copies go however new they are": (
        sweeper,
        "misplaced",
        lambda stamps, home, _: (
            Copy(key, at, stamp or 1) for (key, at), stamp in stamps.items() if at != home(key) and stamp is not None
        ),
    ),
}
QUICK = "a sweep overlooks rows"


def _named(mistakes: dict[str, Any]) -> list[Any]:
    return [pytest.param(name, marks=[] if name == QUICK else PROOF) for name in mistakes]


def _many(histories: Callable[[int, int], int], seeded: random.Random) -> int:
    """Histories until one of them has a removal stopped; how many."""
    return next((stopped for _ in range(40) if (stopped := histories(seeded.getrandbits(32), 25))), 0)


@pytest.mark.parametrize("name", _named(MISTAKES))
def test_mistakes_are_stopped(
    histories: Callable[[int, int], int], name: str, seeded: random.Random, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Guarantee 13: whatever takes a living row for gone, the table is asked before its record goes."""
    monkeypatch.setattr(*MISTAKES[name])
    assert _many(histories, seeded) > 0


@pytest.mark.parametrize("name", _named(MISTAKES))
def test_without_the_guard_they_are_found_out(
    histories: Callable[[int, int], int], name: str, seeded: random.Random, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The histories are nasty enough: nothing but the guard keeps the records from these mistakes."""
    monkeypatch.setattr(*MISTAKES[name])
    monkeypatch.setattr(RemovalGuard, "_living", lambda *_: set())
    with pytest.raises(AssertionError, match="readers found"):
        _many(histories, seeded)


@pytest.mark.parametrize("name", [pytest.param(name, marks=PROOF) for name in BROKEN])
def test_what_no_question_answers_is_found_out(
    histories: Callable[[int, int], int], name: str, seeded: random.Random, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Keys of former rules have no rows, and copies are of living ones: no look at the table tells what may go."""
    monkeypatch.setattr(*BROKEN[name])
    with pytest.raises(AssertionError, match="readers found"):
        _many(histories, seeded)
