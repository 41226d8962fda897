"""``compactory serve``: serves lookups over HTTP."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Annotated

from ..context.flags import LogLevel, argument, flag, option
from ..context.session import Problems, begin

if TYPE_CHECKING:
    from compactory_api.http.listen import Listen
    from compactory_console import Console

    from ..context.configuration import Configuration

__all__ = ["serve"]

_CONSOLE = "/console"


def serve(
    names: Annotated[list[str] | None, argument("[DIRECTORY…]", "Directories of compactory.toml, or topics.")] = None,
    listen: Annotated[str | None, option("--listen", "HOST:PORT", "Address, instead of 127.0.0.1:8080.")] = None,
    no_auth: Annotated[bool, flag("--no-auth", "Require no token: all who reach the address may read.")] = False,
    drain: Annotated[float, option("--drain", "SECONDS", "Serve on after SIGTERM, not ready.", min=0, max=300)] = 0.0,
    with_console: Annotated[bool, flag("--console", "Serve the console too, at /console.")] = False,
) -> None:
    """Serve lookups over HTTP until SIGTERM or Ctrl-C: in the named directories, or all of compactory.toml.

    Listens at once and answers 503 until every topic is read; once ready it stays so through outages of Kafka.
    With COMPACTORY_HTTP_READ_TOKEN requests need a bearer token. Directories with mastered = "kafka" also take writes,
    with COMPACTORY_HTTP_WRITE_TOKEN; several servers forward them to the one that owns the directory.

    Example: `compactory serve terminal_acquirer --kafka localhost:9092 --listen 0.0.0.0:8080`
    """
    configuration = begin(LogLevel.INFO)
    import structlog

    from compactory import Directory, GlobalStore
    from compactory_api.http.access import Access
    from compactory_api.http.listen import Listen
    from compactory_api.server import Server
    from compactory_mastered.rules import rule_problems

    from ..views.progress import LoadingLine

    problems = Problems()
    chosen = problems.of(partial(configuration.chosen, names or (), "serve")) or []
    directories = [configuration.directory(name) or Directory(name) for name in chosen]
    problems.add(rule_problems(directories))
    kafka = problems.of(configuration.kafka)
    backend = problems.of(configuration.backend)
    place = problems.of(partial(Listen.parse, listen or configuration.listen))
    host = place.host if place is not None else "localhost"
    access = problems.of(partial(Access.for_listener, host, configuration.tokens, no_auth=no_auth))
    problems.raise_any()
    assert kafka is not None
    assert place is not None
    assert access is not None
    with place.bind() as bound:
        url = Listen(place.host, bound.getsockname()[1])
        line = LoadingLine("loading", logs=False)
        options = configuration.store_options
        server = Server(
            GlobalStore(kafka.properties(), directories, backend=backend, on_progress=line.update, **options),
            access=access,
            options=replace(configuration.server_options, drain=drain),
            loading=line,
            mounted=(_CONSOLE, _console(configuration, url)) if with_console else None,
        )
        structlog.get_logger("compactory.api").info("listening", url=f"http://{url}")
        server.run(bound)


def _console(configuration: Configuration, own: Listen) -> Console:
    """Return the console over this server and those of [console]."""
    from compactory_console import Console

    from .console import console_options

    options = console_options(configuration, own.host, (), prefix=_CONSOLE)
    return Console(replace(options, servers=[f"http://{own}", *options.servers]))
