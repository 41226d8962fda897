"""The HTTP server over a store: it listens at once, and loads the store in the background."""

from __future__ import annotations

import logging
import signal
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

from compactory.errors import StartTimeout, StoreClosed, Unreachable
from compactory.store import GlobalStore

from .app import Application, create_app
from .http.access import Access
from .http.asgi_server import AsgiServer, Mounted
from .options import ServerOptions

__all__ = ["Server"]

log = logging.getLogger("compactory.api")

_RETRY_SECONDS = 1.0  # seconds until writers that could not be started are tried again
_CLOSE_SECONDS = 5.0  # seconds that closing the store may take before the process ends without it


class Server:
    """An HTTP server over a store, which it starts and closes. A single thread calls ``run``.

    ``mounted`` is a path and another ASGI application, which answers the requests below it.
    """

    def __init__(
        self,
        store: GlobalStore,
        *,
        access: Access,
        options: ServerOptions | None = None,
        mounted: tuple[str, Any] | None = None,
    ) -> None:
        options = options or ServerOptions()
        self.app = create_app(store, access=access)
        self.app.writes.servers = options.servers
        self._store = store
        self._advertised = options.advertised
        self._uvicorn = _DrainingServer(self.app, options, self.app if mounted is None else Mounted(self.app, *mounted))
        self._failure: BaseException | None = None
        self._stop_requested = threading.Event()

    def run(self, listening: socket.socket) -> None:
        """Serve on a bound socket until SIGTERM, Ctrl-C or `stop`, then close the socket and the store.

        Raises what the store's start raised (ConfigError, Unreachable, StartTimeout …).
        """
        self.app.writes.url = self._advertised or _url_of(listening)
        threading.Thread(target=self._load, name="compactory-load", daemon=True).start()
        try:
            self._uvicorn.run([listening])
        finally:
            listening.close()
            self._close()
        if self._failure is not None:
            raise self._failure

    def stop(self) -> None:
        """Ask ``run`` to end as SIGTERM does. For any thread."""
        self._uvicorn.ask_to_stop()

    def _load(self) -> None:
        try:
            self.app.writes.check()
            self._store.start()
            while not self._start_writes() and not self._stop_requested.wait(_RETRY_SECONDS):
                pass
        except StoreClosed:
            return  # a stop was requested while the store loaded
        except BaseException as error:  # noqa: BLE001 (raised again by run)
            self._failure = error
            self._uvicorn.should_exit = True

    def _start_writes(self) -> bool:
        """Start the writers; return False if Kafka is not reached. Raises ConfigError, StoreClosed."""
        try:
            self.app.writes.start()
        except (Unreachable, StartTimeout) as error:
            log.warning("lookups are served, writes are not yet: %s", " ".join(str(error).split()))
            return False
        return True

    def _close(self) -> None:
        self._stop_requested.set()
        closing = threading.Thread(target=self._close_all, name="compactory-close", daemon=True)
        closing.start()
        closing.join(_CLOSE_SECONDS)
        if closing.is_alive():
            log.warning("the store did not close within %g s; ending without it", _CLOSE_SECONDS)

    def _close_all(self) -> None:
        self.app.threads.close()
        self.app.writes.close()
        self._store.close()


def _url_of(listening: socket.socket) -> str:
    host, port = listening.getsockname()[:2]
    if host in ("0.0.0.0", "::"):  # noqa: S104 - compared, not listened on
        host = socket.gethostname()
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


class _DrainingServer(AsgiServer):
    """Turns readiness off before it closes its sockets, and raises no signal again."""

    def __init__(self, app: Application, options: ServerOptions, served: Any) -> None:
        super().__init__(served, graceful=options.graceful, proxies=options.proxies)
        self._app = app
        self._drain = options.drain
        self._graceful = options.graceful
        self._remaining_ticks: int | None = None

    def ask_to_stop(self) -> None:
        """Turn readiness off and end after the drain time. The second call ends without waiting for requests."""
        if self._app.health.stopping:
            self.should_exit = self.force_exit = True
        self._app.health.stopping = True

    async def on_tick(self, counter: int) -> bool:
        """Count the drain time down. Called every 0.1 s."""
        if self._app.health.stopping and self._remaining_ticks is None:
            self._remaining_ticks = round(self._drain * 10)
        if self._remaining_ticks is not None:
            self.should_exit |= self._remaining_ticks <= 0
            self._remaining_ticks -= 1
        return await super().on_tick(counter)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Close the sockets and wait for requests. Streams end at once, waits for offsets a little later."""
        self._app.health.stopping = True
        self._app.streams.close()
        self._app.freshness.close(within=self._graceful * 0.8)
        await super().shutdown(sockets)
        await self._app.writes.aclose()

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Handle SIGTERM and Ctrl-C while the block runs, and do not raise them again after it."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        previous = {number: signal.signal(number, self.handle_exit) for number in (signal.SIGTERM, signal.SIGINT)}
        try:
            yield
        finally:
            for number, handler in previous.items():
                signal.signal(number, handler)

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:  # noqa: ARG002 (the base class's)
        """Stop because of a signal. Ctrl-C does not wait for load balancers."""
        if sig == signal.SIGINT:
            self._drain = 0.0
        self.ask_to_stop()
