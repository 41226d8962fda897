"""A server in a process of its own, to be killed and paused: ``-m tests.api.server_process KAFKA TOPIC PORT``."""

from __future__ import annotations

import sys

from compactory import Directory, GlobalStore, Index
from compactory_api.http.access import Access, Scope
from compactory_api.http.listen import Listen
from compactory_api.options import ServerOptions
from compactory_api.server import Server
from compactory_mastered import WriteRules
from tests.api.serving import SERVERS

RULES = WriteRules(unique=(("email",),))


def main(kafka: str, topic: str, port: int, breakage: str) -> None:
    """Serve until killed."""
    if breakage:
        _break(breakage)
    directory = Directory("tenants", topic=topic, indexes=[Index("email", unique=True)], rules=RULES)
    slow = {"fetch.min.bytes": 1_000_000, "fetch.wait.max.ms": 1500} if breakage in ("reading", "slow") else {}
    store = GlobalStore({"bootstrap.servers": kafka, **slow}, [directory], unusable_directory="serve")
    server = Server(store, access=Access(anonymous=Scope.WRITE), options=ServerOptions(servers=SERVERS))
    server.run(Listen("127.0.0.1", port).bind())


def _break(what: str) -> None:
    """Take one of the parts away on which the guarantees stand; ``slow`` only has the store read late."""
    from compactory_mastered import fenced_producer, idempotency, owner, writer

    if what == "fence":
        import itertools
        import os

        numbers = itertools.count()
        made = fenced_producer.FencedProducer.__init__
        writer.FencedProducer.__init__ = lambda self, kafka, name, *rest: made(  # type: ignore[method-assign]
            self, kafka, f"{name}-{os.getpid()}-{next(numbers)}", *rest
        )
    elif what == "reading":
        writer.MasteredWriter._read_to_the_end = lambda self: None  # type: ignore[method-assign]
    elif what == "answers":
        idempotency.RememberedAnswers.find = lambda self, operation: None  # type: ignore[method-assign]
    elif what == "cursors":
        owner.Owner._check_cursor = lambda self, cursor: None  # type: ignore[method-assign]
    elif what != "slow":
        raise ValueError(what)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]), sys.argv[4] if len(sys.argv) > 4 else "")
