"""The steps that the demo shows: one change, or with --check all that it promises."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from functools import partial

from ..context.failure import StepFailed
from ..views.terminal import number, seconds
from .narrator import Narrator
from .stage import TOPIC, Stage

__all__ = ["prove", "tell"]

_CHANGES = 20
_LOOKUP_SECONDS = 0.5


def prove(stage: Stage, narrator: Narrator) -> None:
    """Show a change. Raises StepFailed if it does not arrive."""
    with narrator.step("change", "UPDATE in Postgres") as step:
        step.seconds = _change(stage, "T4242", "B42")
        step.result = "from COMMIT of an UPDATE to the answer of an HTTP lookup"


def tell(stage: Stage, narrator: Narrator) -> None:
    """Run and print every step. Raises StepFailed or Unreachable if a step fails."""
    _tell_change(stage, narrator)
    _tell_outage(stage, narrator)
    _tell_delete(stage, narrator)
    _tell_verify(stage, narrator)
    _tell_poison(stage, narrator)


def _tell_change(stage: Stage, narrator: Narrator) -> None:
    with narrator.step("change", "UPDATE in Postgres") as step:
        times = [_change(stage, f"T{1 + 97 * count}", f"B{count}") for count in range(_CHANGES)]
        step.seconds = statistics.median(times)
        step.result = f"from COMMIT to HTTP lookup: median of {_CHANGES} updates, slowest {seconds(max(times))}"


def _tell_outage(stage: Stage, narrator: Narrator) -> None:
    with narrator.step("stop", "stopping Postgres") as step:
        stage.postgres.stop()
        step.result = "Postgres is down"
    with narrator.step("lookups", "looking up without Postgres") as step:
        keys = [f"T{number}" for number in range(1, 1001)]
        local_rate = _rate(lambda key: stage.view[key]["terminalId"], keys)
        http_rate = _rate(lambda key: stage.client.entry(key).body["terminalId"], keys)
        step.result = f"go on: {number(http_rate)} a second over one HTTP connection, {number(local_rate)} in process"
    with narrator.step("start", "starting Postgres") as step:
        stage.postgres.start()
        step.result = "Postgres is back"
    with narrator.step("catch up", "UPDATE in Postgres") as step:
        _change(stage, "T4242", "B42")
        step.result = "a new change arrived: the source came back by itself"


def _tell_delete(stage: Stage, narrator: Narrator) -> None:
    with narrator.step("delete", "UPDATE … SET is_active = false") as step:
        with stage.connect() as connection:
            connection.execute("UPDATE terminal_acquirer SET is_active = false WHERE terminal_id = 'T77'")
        stage.wait(lambda: stage.client.entry("T77").status == 404, "a deleted row is still served", pause=0.001)
        stage.wait(lambda: "T77" not in stage.view, "a deleted row is still in the store")
        step.result = f"soft delete: {stage.client.path('T77')} is 404"


def _tell_verify(stage: Stage, narrator: Narrator) -> None:
    with narrator.step("verify", "comparing topic and table") as step:
        outcome = stage.compare()
        if not outcome.equal:
            raise StepFailed(f"topic and table differ: {dict(outcome.findings)}")
        step.result = (
            f"all {number(outcome.expected)} active rows are in the topic as the table has them, and nothing else"
        )


def _tell_poison(stage: Stage, narrator: Narrator) -> None:
    with narrator.step("poison", "writing a record that is no JSON") as step:
        stage.poison()
        stage.wait(lambda: bool(_bad_records(stage)), "/v1/errors does not list the bad record")
        stage.wait(lambda: stage.client.entry("T1").status == 200, "T1 is not served")
        [bad] = _bad_records(stage)
        step.result = f"/v1/errors lists {bad}; the rest is served"


def _change(stage: Stage, terminal: str, acquirer: str) -> float:
    """Change a row, wait until HTTP and store have it, return the seconds from commit to HTTP answer."""
    with stage.connect() as connection:
        connection.execute(
            "UPDATE terminal_acquirer SET acquirer_id = %s WHERE terminal_id = %s AND is_active", [acquirer, terminal]
        )
        committed = time.perf_counter()
        otherwise = f"the change of {terminal} did not arrive"
        stage.wait(partial(_answers, stage, terminal, acquirer), otherwise, pause=0.0005)
        elapsed = time.perf_counter() - committed
    stage.wait(lambda: stage.view[terminal]["acquirerId"] == acquirer, otherwise, pause=0.0005)
    return elapsed


def _answers(stage: Stage, terminal: str, acquirer: str) -> bool:
    answer = stage.client.entry(terminal)
    return bool(answer.status == 200 and answer.body["acquirerId"] == acquirer)


def _bad_records(stage: Stage) -> list[str]:
    records = stage.client.get("/v1/errors").body["errors"]
    return [f"{record['topic']}:{record['partition']}:{record['offset']} ({record['error']})" for record in records]


def _rate(look: Callable[[str], str], keys: Sequence[str]) -> int:
    """Return lookups per second. Raises StepFailed for a wrong answer."""
    count, began = 0, time.perf_counter()
    while (elapsed := time.perf_counter() - began) < _LOOKUP_SECONDS:
        for key in keys:
            if look(key) != key:
                raise StepFailed(f"the lookup of {key} in {TOPIC} answered with another terminal")
        count += len(keys)
    return round(count / elapsed)
