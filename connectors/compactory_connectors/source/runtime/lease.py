"""One source at a time has a connector's lease and publishes; a thread of its own keeps the lease.

The lease decides which source publishes, so that sources do not fence each other in turns. With transactions, Kafka's
transactional id keeps a source without the lease from publishing. Without them there is only the lease's time.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from contextlib import closing, suppress
from uuid import uuid4

import psycopg
import structlog

from compactory.errors import CompactoryError, LeaseLost
from compactory.kafka.client import Kafka
from compactory.records import Partition
from compactory_connectors.kafka.publisher import PublishLease
from compactory_connectors.postgres.postgres_errors import postgres_errors
from compactory_connectors.postgres.session import refuse_pooling

from ..config.connector import ConnectorConfig
from ..offsets.topics import OFFSETS_TOPIC, publisher_of
from ..status.status import LeaseStatus
from .claim import TTL, Claim, LeaseConnection, choose_claim, connect_lease

__all__ = ["Lease", "LeaseContested", "LeaseTaken", "LeaseUnsure", "end_abandoned"]

log = structlog.get_logger("compactory.source")

_BEAT = 0.8  # seconds between renewals: two may fail


class LeaseTaken(LeaseLost):
    """Somebody else has the lease; a standby waits for its turn."""


class LeaseContested(LeaseLost):
    """Sources that share no lease with this one take the transactional id over again and again."""


class LeaseUnsure(CompactoryError):
    """The lease was not renewed in time, and where nothing fences, nothing may be published without it."""

    retryable = True


class Lease:
    """The lease of one connector. Thread-safe, but for :meth:`take` and :meth:`close`: they are the source's thread's.

    While Postgres is away nobody can renew and nobody take over: the last holder keeps the lease, unless it is
    taken when Postgres is back. Any thread calls ``shown`` when something changes.
    """

    def __init__(self, connector: ConnectorConfig, shown: Callable[[LeaseStatus], None]) -> None:
        self._connector = connector
        self._shown = shown
        self._log = log.bind(connector=connector.name)
        self._holder = str(uuid4())
        self._lock = threading.Lock()  # guards all of the following; held while Postgres is asked
        self._connection: LeaseConnection | None = None
        self._claim: Claim | None = None
        self._connected = False  # ever
        self._patient_until = 0.0
        self._held = False
        self._epoch: int | None = None
        self._renewed = 0.0
        self._failing = False
        self._closing = threading.Event()
        self._thread: threading.Thread | None = None

    @property
    def held(self) -> bool:
        """Whether it is ours, as far as is known."""
        return self._held

    def take(self) -> None:
        """Have the lease from now on, whether it was ours already or is to be had.

        Raises LeaseTaken naming its holder, Unreachable, ConfigError.
        """
        with self._lock, postgres_errors(self._connector.connection):
            status = self._ask()
            if not status.held:
                self._held = False
                raise LeaseTaken(f"connector {self._connector.name!r} is published by {status.holder}")
            if not self._held or status.epoch != self._epoch:
                self._log.info("lease taken", kind=status.kind, epoch=status.epoch)
                if status.lacks is not None:
                    self._log.warning(f"an advisory lock stands in for the lease: {status.lacks}")
            self._held, self._epoch = True, status.epoch
        if self._thread is None:
            name = f"compactory-lease-{self._connector.name}"
            self._thread = threading.Thread(target=self._keep, name=name, daemon=True)
            self._thread.start()

    def confirm(self) -> None:
        """Make sure that nobody took over while this process was busy, or frozen, with taking over itself.

        To be called once the transactional id is ours. Raises LeaseLost, Unreachable.
        """
        if time.monotonic() - self._renewed > TTL:
            with suppress(LeaseTaken):
                self.take()
        self.check()

    def check(self) -> None:
        """Raise LeaseLost where somebody else has the lease. Asks nobody, and so may be called before each publish.

        Where transactions are off, raises LeaseUnsure as soon as somebody else may have it.
        """
        if not self._held:
            raise LeaseLost("another source took over this connector's lease")
        if not self._connector.transactions and time.monotonic() - self._renewed > TTL:
            raise LeaseUnsure(
                f"the lease was not renewed for {TTL:g} s, so that another source may have taken over, and with"
                " compactory.transactions=off nothing keeps two from publishing: nothing is sent until it is renewed"
            )

    def close(self) -> None:
        """Give the lease back, so that a standby takes over at once. Never raises for Postgres: a lease runs out."""
        self._closing.set()
        if self._thread is not None:
            self._thread.join()
        with self._lock:
            try:
                if self._held and self._claim is not None:
                    self._claim.release()
            except psycopg.Error as error:
                self._log.warning("lease not given back: it runs out", error=str(error), seconds=TTL)
            self._held = False
            self._disconnect()

    def _keep(self) -> None:
        """Renew the lease until it is closed. The source's thread may renew it too. No error ends this thread."""
        while not self._closing.wait(_BEAT):
            with self._lock:
                if self._held:
                    self._beat()

    def _beat(self) -> None:
        try:
            status = self._ask()
        except Exception as error:  # noqa: BLE001 - whatever it is, the next renewal may succeed
            if not self._failing:
                self._log.warning("lease not renewed", error=" ".join(str(error).split()))
            self._failing = True
            return
        self._failing = False
        if not status.held or status.epoch != self._epoch:
            self._held = False
            self._log.warning("lease lost", holder=status.holder)

    def _ask(self) -> LeaseStatus:
        """Renew or take it; return its state. After a failure the next call connects anew."""
        now = time.monotonic()
        try:
            status = self._connect().take(absent=self._held or now >= self._patient_until)
        except BaseException:
            self._disconnect()
            raise
        if status.held:
            self._renewed = now
        self._shown(status)
        return status

    def _connect(self) -> Claim:
        if self._claim is None:
            conninfo = self._connector.connection.conninfo
            self._connection = connect_lease(conninfo)
            refuse_pooling(self._connection)
            self._claim = choose_claim(self._connection, self._connector.name, self._holder)
            if self._connected:
                # Postgres may have been away for the holder as well: it gets the time to come back.
                self._patient_until = time.monotonic() + TTL
            self._connected = True
        return self._claim

    def _disconnect(self) -> None:
        if self._connection is not None:
            self._connection.close()
        self._connection = self._claim = None


def end_abandoned(connector: ConnectorConfig, kafka: Kafka, lease: PublishLease) -> None:
    """Abort a transaction that an earlier holder left open in the offsets topic: it would hide what comes after it.

    Kafka would end it by itself, after its time-out and up to 10 s more, as that often brokers look
    (``transaction.abort.timed.out.transaction.cleanup.interval.ms``). Taking the transactional id over ends it now.
    To be called by the holder of the lease, before it reads offsets. Raises LeaseLost, Unreachable, ConfigError.
    """
    place = [Partition(OFFSETS_TOPIC, 0)]
    if not connector.transactions or OFFSETS_TOPIC not in kafka.topics([OFFSETS_TOPIC]):
        return
    if kafka.stable_offsets(place) != kafka.high_watermarks(place):
        with closing(publisher_of(connector, kafka, lease)) as publisher:
            publisher.open()
