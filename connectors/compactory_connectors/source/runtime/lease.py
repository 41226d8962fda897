"""The lease of a connector: the source that has it publishes. A thread of its own renews it.

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

_RENEWAL_INTERVAL = 0.8  # seconds: two renewals may fail


class LeaseTaken(LeaseLost):
    """Another source has the lease; a standby waits until it ends."""


class LeaseContested(LeaseLost):
    """Sources that share no lease with this one take the transactional id over repeatedly."""


class LeaseUnsure(CompactoryError):
    """The lease was not renewed in time. Without transactions nothing may be published until it is."""

    retryable = True


class Lease:
    """The lease of one connector. Thread-safe, except :meth:`take` and :meth:`close`, for the source's thread.

    While Postgres is away no source can renew or take over: the last holder keeps the lease, unless another takes it
    when Postgres is back. ``on_status`` is called by any thread after each attempt to take or renew the lease.
    """

    def __init__(self, connector: ConnectorConfig, on_status: Callable[[LeaseStatus], None]) -> None:
        self._connector = connector
        self._on_status = on_status
        self._log = log.bind(connector=connector.name)
        self._holder = str(uuid4())
        self._lock = threading.Lock()  # guards all of the following; held while Postgres is asked
        self._connection: LeaseConnection | None = None
        self._claim: Claim | None = None
        self._was_connected = False
        self._grace_until = 0.0
        self._is_held = False
        self._epoch: int | None = None
        self._renewed = 0.0
        self._is_failing = False
        self._closing = threading.Event()
        self._thread: threading.Thread | None = None

    @property
    def is_held(self) -> bool:
        """True if this source has the lease, by its last renewal."""
        return self._is_held

    def take(self) -> None:
        """Take or renew the lease. Raises LeaseTaken, which names the holder, Unreachable and ConfigError."""
        with self._lock, postgres_errors(self._connector.connection):
            status = self._request()
            if not status.held:
                self._is_held = False
                raise LeaseTaken(f"connector {self._connector.name!r} is published by {status.holder}")
            if not self._is_held or status.epoch != self._epoch:
                self._log.info("lease taken", kind=status.kind, epoch=status.epoch)
                if status.lacks is not None:
                    self._log.warning(f"an advisory lock stands in for the lease: {status.lacks}")
            self._is_held, self._epoch = True, status.epoch
        if self._thread is None:
            name = f"compactory-lease-{self._connector.name}"
            self._thread = threading.Thread(target=self._keep_renewing, name=name, daemon=True)
            self._thread.start()

    def confirm(self) -> None:
        """Take the lease again if this process was busy, or frozen, for longer than the lease lasts.

        To be called after taking over the transactional id. Raises LeaseLost, Unreachable.
        """
        if time.monotonic() - self._renewed > TTL:
            with suppress(LeaseTaken):
                self.take()
        self.check()

    def check(self) -> None:
        """Raise LeaseLost if another source has the lease. Asks no server: cheap enough before each publish.

        Without transactions, raise LeaseUnsure as soon as another source may have it.
        """
        if not self._is_held:
            raise LeaseLost("another source took over this connector's lease")
        if not self._connector.transactions and time.monotonic() - self._renewed > TTL:
            raise LeaseUnsure(
                f"the lease was not renewed for {TTL:g} s, so that another source may have taken over, and with"
                " compactory.transactions=off nothing keeps two from publishing: nothing is sent until it is renewed"
            )

    def close(self) -> None:
        """Give the lease back, so that a standby takes over at once. Errors of Postgres are logged: a lease expires."""
        self._closing.set()
        if self._thread is not None:
            self._thread.join()
        with self._lock:
            try:
                if self._is_held and self._claim is not None:
                    self._claim.release()
            except psycopg.Error as error:
                self._log.warning("lease not given back: it expires", error=str(error), seconds=TTL)
            self._is_held = False
            self._disconnect()

    def _keep_renewing(self) -> None:
        """Renew the lease until it is closed. No error ends this thread."""
        while not self._closing.wait(_RENEWAL_INTERVAL):
            with self._lock:
                if self._is_held:
                    self._renew()

    def _renew(self) -> None:
        try:
            status = self._request()
        except Exception as error:  # noqa: BLE001 - whatever it is, the next renewal may succeed
            if not self._is_failing:
                self._log.warning("lease not renewed", error=" ".join(str(error).split()))
            self._is_failing = True
            return
        self._is_failing = False
        if not status.held or status.epoch != self._epoch:
            self._is_held = False
            self._log.warning("lease lost", holder=status.holder)

    def _request(self) -> LeaseStatus:
        """Renew or take the lease; return its status. After a failure the next call connects anew."""
        asked_at = time.monotonic()
        try:
            status = self._connect().take(absent=self._is_held or asked_at >= self._grace_until)
        except BaseException:
            self._disconnect()
            raise
        if status.held:
            self._renewed = asked_at
        self._on_status(status)
        return status

    def _connect(self) -> Claim:
        if self._claim is None:
            conninfo = self._connector.connection.conninfo
            self._connection = connect_lease(conninfo)
            refuse_pooling(self._connection)
            self._claim = choose_claim(self._connection, self._connector.name, self._holder)
            if self._was_connected:
                # Postgres may have been away for the holder as well: wait until it could have renewed.
                self._grace_until = time.monotonic() + TTL
            self._was_connected = True
        return self._claim

    def _disconnect(self) -> None:
        if self._connection is not None:
            self._connection.close()
        self._connection = self._claim = None


def end_abandoned(connector: ConnectorConfig, kafka: Kafka, lease: PublishLease) -> None:
    """Abort a transaction that an earlier holder left open in the offsets topic: it would hide what comes after it.

    Kafka would end it itself, after its time-out and up to 10 s more: brokers check in that interval
    (``transaction.abort.timed.out.transaction.cleanup.interval.ms``). Taking the transactional id over ends it now.
    To be called by the holder of the lease, before it reads offsets. Raises LeaseLost, Unreachable, ConfigError.
    """
    partition = [Partition(OFFSETS_TOPIC, 0)]
    if not connector.transactions or OFFSETS_TOPIC not in kafka.topics([OFFSETS_TOPIC]):
        return
    if kafka.stable_offsets(partition) != kafka.high_watermarks(partition):
        with closing(publisher_of(connector, kafka, lease)) as publisher:
            publisher.open()
