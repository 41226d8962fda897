"""A process with a store on a shared copy: ``shared_child KAFKA TOPIC FOLDER``; asked by lines of JSON.

A line holds tokens to wait for. The answer is a cut: the topic's id, positions, entries, and keys by indexed value.
The copy is looked at, and its file bounded, far more often than elsewhere.
"""

from __future__ import annotations

import faulthandler
import json
import signal
import sys

from compactory import Directory, GlobalStore, Index, Shared, Token
from compactory.ingest import reader
from compactory.storage.shared import database

VALUES = range(4)


def main(kafka: str, topic: str, folder: str) -> None:
    reader._FLUSH_EVERY = 0.02
    database._SPARE = 1 << 18
    faulthandler.register(signal.SIGUSR1)
    directories = [Directory(topic, indexes=[Index("n")])]
    store = GlobalStore(kafka, directories, backend=Shared(folder), missing_topic="wait")
    store.start()
    for line in sys.stdin:
        for token in json.loads(line):
            store.wait_for(Token(*token), timeout=30)
        cut = store.snapshot()
        view = cut[topic]
        answer = {
            "topic_id": cut.topic_ids[topic],
            "positions": {place.partition: position for place, position in cut.positions.items()},
            "entries": dict(view.items()),
            "found": {n: sorted(each["at"] for each in view.find(n=n)) for n in VALUES},
            "sorted": list(view.prefix("")) == sorted(view.items()),
            "owner": store.figures()[("", "owner")],
        }
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:4])
