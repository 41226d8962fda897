"""A broker that stops answering for a while, as one does whose host hangs."""

from __future__ import annotations

import os
import signal
import uuid
from collections.abc import Iterator
from contextlib import contextmanager

from confluent_kafka import KafkaException
from confluent_kafka.admin import NewTopic

from tests.stack.apache_kafka import ApacheKafka, new_admin
from tests.stack.freezing import freeze
from tests.store.topics import eventually


@contextmanager
def paused(server: ApacheKafka) -> Iterator[None]:
    """Stop the broker from answering. Afterwards it is whole again: after a long pause it has to register anew."""
    assert server.pid is not None
    freeze(server.pid)
    try:
        yield
    finally:
        resume(server)


def resume(server: ApacheKafka) -> None:
    """Have it go on where it was frozen, and start it where it does not run."""
    if server.pid is None:
        server.start()
    else:
        os.kill(server.pid, signal.SIGCONT)
        eventually(lambda: _is_whole(server.address), 60)


def _is_whole(address: str) -> bool:
    admin = new_admin({"bootstrap.servers": address})
    name = f"pause-{uuid.uuid4().hex}"
    try:
        admin.create_topics([NewTopic(name, 1, 1)], request_timeout=3)[name].result()
    except KafkaException:
        return False
    return True
