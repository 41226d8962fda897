"""Which events may run, against a plain model."""

from __future__ import annotations

import random
import time
from typing import Any

from compactory_connectors.kafka.consumer_group import Position
from compactory_connectors.processors.backlog import Backlog
from compactory_connectors.processors.pending import StoredEvent, Task


def runnable(tasks: dict[str, Task]) -> set[str]:
    """Of each key the first event, if none of the key runs and it is due."""
    keys: dict[Any, list[Task]] = {}
    for task in tasks.values():
        keys.setdefault(task.stored.key or task.stored.id, []).append(task)
    firsts = [
        min(of_key, key=lambda task: task.stored.offset)
        for of_key in keys.values()
        if not any(t.running for t in of_key)
    ]
    return {task.stored.id for task in firsts if task.stored.due <= time.time()}


def test_of_each_key_the_first_event_runs(seeded: random.Random) -> None:
    backlog, model, position = Backlog(), dict[str, Task](), Position(0, 0)
    for offset in seeded.sample(range(2000), 400):
        key = seeded.choice([None, "a", "b", "c", "d"])
        due = seeded.choice([0.0, 0.0, time.time() + 3600])
        parked = StoredEvent(
            id=str(offset), topic="t", partition=0, offset=offset, timestamp_ms=0, key=key, value=b"12", due=due
        )
        task = Task(parked, position, is_stored=False, size=2)
        assert backlog.add(task)
        assert not backlog.add(task)
        model[parked.id] = task
        if seeded.random() < 0.1:
            kept = {event for event in model if seeded.random() < 0.7}
            model = {event: model[event] for event in kept}
            backlog = Backlog(model.values())
        wanted, limit = runnable(model), seeded.randrange(4)
        taken = backlog.take(limit)
        assert len(taken) == min(limit, len(wanted))
        assert {task.stored.id for task in taken} <= wanted
        for task in [task for task in model.values() if task.running and seeded.random() < 0.5]:
            if seeded.random() < 0.5:
                backlog.put_back(task)
            else:
                backlog.remove(task)
                del model[task.stored.id]
        assert backlog.tasks == model
        assert backlog.bytes == 2 * len(model)
