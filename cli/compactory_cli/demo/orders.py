"""Orders to the running demo: ``demo stop`` and ``demo start`` write a file; the demo carries it out and deletes it."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from compactory.errors import CompactoryError, Unreachable

from ..context.failure import StepFailed
from .home import Home

if TYPE_CHECKING:
    from .narrator import Narrator
    from .stage import Stage

__all__ = ["carry_out_orders", "give_order"]

_ORDER = "demo.order"
_TIMEOUT = 60.0  # seconds that an order may take, as Postgres may on a slow disk
_PAUSE = 0.1  # seconds between two looks at the file
_RESULTS = {
    "stop postgres": "Postgres is down; lookups go on",
    "start postgres": "Postgres is back; the source comes back by itself",
    "stop kafka": (
        "the broker is paused (SIGSTOP) and keeps its topics in memory: clients see an outage, lookups go on"
    ),
    "start kafka": "the broker runs again, with all its topics",
}


def carry_out_orders(stage: Stage, narrator: Narrator) -> None:
    """Carry out orders and keep demo.json up to date, until a signal raises an exception.

    Postgres is stopped and started again on its data. The broker has its topics in memory only, so it is paused.
    """
    home, pids = stage.home, stage.pids
    while True:
        if order := home.read(_ORDER):
            _carry_out(stage, narrator, order)
            pids = stage.pids
            home.announce(stage.describe())
            home.delete(_ORDER)
        for name in sorted(pids.keys() - stage.pids.keys()):
            text = f" [yellow]![/] {name} (pid {pids[name]}) has ended; the others go on"
            narrator.tell({"ended": name, "pid": pids[name]}, text)
        if pids != stage.pids:
            pids = stage.pids
            home.announce(stage.describe())
        time.sleep(_PAUSE)


def _carry_out(stage: Stage, narrator: Narrator, order: str) -> None:
    actions = {
        "stop postgres": stage.postgres.stop,
        "start postgres": stage.postgres.start,
        "stop kafka": stage.broker.pause,
        "start kafka": stage.broker.resume,
    }
    try:
        if order != "start postgres" or not stage.postgres.running:
            actions[order]()
    except CompactoryError as error:
        narrator.tell({"order": order, "error": str(error)}, f" [red]✗[/] [bold]{order}[/]: {error}")
    else:
        narrator.tell({"order": order, "result": _RESULTS[order]}, f" [cyan]→[/] [bold]{order}[/]: {_RESULTS[order]}")


def give_order(home: Home, action: str, server: str) -> dict[str, Any]:
    """Stop or start a server of the demo in this folder and return the result.

    Raises Unreachable if no demo runs here or it takes no orders, StepFailed if it could not carry out the order.
    """
    started_at, order = time.perf_counter(), f"{action} {server}"
    if home.owner() is None or not home.read("demo.json"):
        raise Unreachable("demo", _reason(home))
    home.write(_ORDER, order)
    while home.read(_ORDER):
        if home.owner() is None or time.perf_counter() - started_at > _TIMEOUT:
            raise Unreachable("demo", _reason(home))
        time.sleep(_PAUSE)
    if (server in home.description().get("stopped", ())) != (action == "stop"):
        raise StepFailed(f"the demo could not {order}; see what it prints")
    elapsed = round(time.perf_counter() - started_at, 4)
    return {"action": action, "server": server, "result": _RESULTS[order], "seconds": elapsed}


def _reason(home: Home) -> str:
    owner = home.owner()
    if owner is None:
        return f"no demo runs in this folder ({home.folder.resolve()}); start one with: compactory demo"
    if home.read("demo.json"):
        return f"the demo (pid {owner}) did not answer; see what it prints"
    return f"the demo (pid {owner}) takes no orders: it is starting, ending, or runs its steps (--check)"
