"""Routes card transactions to the bank that authorises them: transactions → authorizations.

It looks up a terminal's acquirer in this process's memory. So it never waits for Postgres, and does not notice when
Postgres is away. A transaction that can't be routed goes to rejected-transactions with the reason as a header.

At least once: a transaction's offset is committed after Kafka has acknowledged the outcome. After a crash the last
batch is sent again, with the same transaction id. See README.md beside this file.
"""

from __future__ import annotations

import json
import logging
import os
import signal
import threading
from collections.abc import Iterable, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, Producer

from compactory import Directory, GlobalStore

log = logging.getLogger("payments")

KAFKA = os.environ.get("PAYMENTS_KAFKA", "localhost:9092")
LISTEN = os.environ.get("PAYMENTS_LISTEN", "127.0.0.1:8090")
PREFIX = os.environ.get("PAYMENTS_TOPIC_PREFIX", "")
TRANSACTIONS, AUTHORIZATIONS, REJECTED = (
    PREFIX + name for name in ("transactions", "authorizations", "rejected-transactions")
)
TERMINALS = Directory("terminals", topic=f"{PREFIX}terminal_acquirer", key="terminalId", active="isActive")


class Rejected(Exception):
    """A transaction that can't be routed, with the reason."""


class Payments:
    """Consumes, looks up, produces, commits. Owned by one thread; one that failed is not used again."""

    def __init__(self, terminals: Mapping[str, dict[str, Any]]) -> None:
        self._terminals = terminals
        self._failure: KafkaError | None = None
        self._producer = Producer({"bootstrap.servers": KAFKA, "enable.idempotence": True, "linger.ms": 5})
        self._consumer = Consumer(
            {
                "bootstrap.servers": KAFKA,
                "group.id": f"{PREFIX}payments",
                "enable.auto.commit": False,
                "auto.offset.reset": "earliest",
                "isolation.level": "read_committed",
                "session.timeout.ms": 10_000,  # so long the partitions of a killed process wait for another
            }
        )

    def run(self, stop: threading.Event) -> None:
        """Work until ``stop`` is set; the batch under way is finished."""
        self._consumer.subscribe([TRANSACTIONS])
        try:
            while not stop.is_set():
                received = self._consumer.consume(500, 0.2)
                for message in received:
                    if (error := message.error()) is not None:
                        log.warning("Kafka: %s", error.str())  # the client recovers by itself
                messages = [message for message in received if message.error() is None]
                if messages:
                    self._route(messages)
        finally:
            self._consumer.close()

    def _route(self, messages: Iterable[Message]) -> None:
        for message in messages:
            topic, value, headers = self._routed(message)
            self._producer.produce(topic, value, message.key(), headers=headers, on_delivery=self._delivered)
        self._producer.flush()
        if self._failure is not None:
            raise KafkaException(self._failure)
        try:
            self._consumer.commit(asynchronous=False)
        except KafkaException as error:  # a rebalance took the partition away: its new owner sends the batch again
            log.warning("offsets not committed: %s", error)

    def _routed(self, message: Message) -> tuple[str, bytes, dict[str, str | bytes | None]]:
        """The topic, value and headers of what comes of a transaction."""
        value = message.value() or b""
        try:
            return AUTHORIZATIONS, json.dumps(self._authorization(value)).encode(), {}
        except Rejected as reason:
            return REJECTED, value, {"reason": str(reason)}

    def _authorization(self, value: bytes) -> dict[str, Any]:
        try:
            transaction = json.loads(value)
            terminal = self._terminals.get(transaction["terminalId"])
            known = {"transactionId": transaction["id"], "amount": transaction["amount"]}
        except (ValueError, KeyError, TypeError) as error:
            raise Rejected(f"not a transaction: {error!r}") from error
        if terminal is None:
            raise Rejected("unknown terminal")
        return {**known, "terminalId": terminal["terminalId"], "acquirerId": terminal["acquirerId"]}

    def _delivered(self, error: KafkaError | None, _message: Message) -> None:
        self._failure = self._failure or error


def probes(store: GlobalStore) -> ThreadingHTTPServer:
    """Serve /readyz: 200 once every directory is read to its high watermark, and for as long as lookups are good."""

    class Probe(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200 if store.ready else 503)
            self.end_headers()

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002
            """Probes are not worth a line each."""

    host, _, port = LISTEN.rpartition(":")
    server = ThreadingHTTPServer((host, int(port)), Probe)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    return server


def main() -> None:
    """Run until SIGTERM or Ctrl-C."""
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s %(message)s")
    stop = threading.Event()
    for sign in (signal.SIGTERM, signal.SIGINT):
        signal.signal(sign, lambda *_: stop.set())
    store = GlobalStore(KAFKA, [TERMINALS])
    server = probes(store)
    with store:  # not one transaction is taken before the directory is complete
        log.info("ready: %d terminals", len(store["terminals"]))
        Payments(store["terminals"]).run(stop)
    server.shutdown()
    log.info("stopped")


if __name__ == "__main__":
    main()
