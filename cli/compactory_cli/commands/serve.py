"""``compactory serve`` and ``console``: lookups over HTTP, and pages for a browser."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Annotated

from compactory.errors import ConfigError

from ..context.flags import LogLevel, argument, flag, option
from ..context.session import Problems, Providers, begin, load_connectors, refuse
from ..views.terminal import warn

if TYPE_CHECKING:
    from compactory_connectors.source.config.connector import ConnectorConfig
    from compactory_console import ConsoleOptions

    from ..context.configuration import Configuration

__all__ = ["run_console", "serve"]

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

    problems = Problems()
    chosen = problems.of(partial(configuration.chosen, names or (), "serve")) or []
    directories = [configuration.directory(name) or Directory(name) for name in chosen]
    problems.add(rule_problems(directories))
    kafka = problems.of(configuration.kafka)
    place = problems.of(partial(Listen.parse, listen or configuration.listen))
    host = place.host if place is not None else "localhost"
    access = problems.of(partial(Access.for_listener, host, configuration.tokens, no_auth=no_auth))
    problems.raise_any()
    assert kafka is not None
    assert place is not None
    assert access is not None
    with place.bind() as bound:
        url = f"http://{Listen(place.host, bound.getsockname()[1])}"
        mounted = None
        if with_console:
            from compactory_console import Console

            options = _console_options(configuration, place.host, (), prefix=_CONSOLE)
            mounted = _CONSOLE, Console(replace(options, servers=[url, *options.servers]))
        server = Server(
            GlobalStore(kafka.properties(), directories, backend=configuration.backend, **configuration.store_options),
            access=access,
            options=replace(configuration.server_options, drain=drain),
            mounted=mounted,
        )
        structlog.get_logger("compactory.api").info("listening", url=url)
        server.run(bound)


def run_console(
    listen: Annotated[str, option("--listen", "HOST:PORT", "Address to listen on.")] = "127.0.0.1:8081",
    server: Annotated[list[str] | None, option("--server", "URL", "Another process to show; repeatable.")] = None,
    provider: Providers = None,
) -> None:
    """Show directories, their changes and every worker in a browser, until SIGTERM or Ctrl-C.

    The processes are those of [console] servers, else COMPACTORY_URL. Visitors sign in with a token of [http], or with
    none on this machine if there is none.

    Example: `compactory console --server http://127.0.0.1:8080`
    """
    configuration = begin(LogLevel.INFO)
    from compactory_api.http.listen import Listen

    place = Listen.parse(listen)
    options = _console_options(configuration, place.host, provider or (), servers=server or ())
    if not options.servers:
        refuse('which processes? give --server URL, or write servers = ["http://HOST:PORT"] into [console]')
    import structlog
    import uvicorn

    from compactory_console import Console

    with place.bind() as bound:
        address = f"http://{Listen(place.host, bound.getsockname()[1])}{options.prefix}"
        structlog.get_logger("compactory.console").info("listening", url=address)
        config = uvicorn.Config(
            Console(options), lifespan="on", log_config=None, access_log=False, server_header=False,
            timeout_graceful_shutdown=1,
        )  # fmt: skip
        uvicorn.Server(config).run([bound])


def _console_options(
    configuration: Configuration,
    host: str,
    providers: Sequence[str],
    *,
    servers: Sequence[str] = (),
    prefix: str | None = None,
) -> ConsoleOptions:
    """Return the options of a console that listens on ``host``. Raises ConfigError with every problem."""
    from compactory_api.http.access import Access, Scope
    from compactory_console import ConsoleOptions

    section, tokens = configuration.console, configuration.tokens
    return ConsoleOptions(
        servers=[*section.get("servers", ()), *servers] or ([configuration.url] if configuration.url else []),
        access=Access.for_listener(host, tokens, no_auth=False, anonymous=Scope.ADMIN),
        token=section.get("token") or tokens.admin or tokens.for_reading,
        postgres=configuration.postgres() if configuration.names_postgres else None,
        kafka=configuration.kafka() if configuration.names_kafka else None,
        connectors=dict(_connectors(configuration, providers)),
        prefix=section.get("prefix", "") if prefix is None else prefix,
    )


def _connectors(configuration: Configuration, providers: Sequence[str]) -> Iterator[tuple[str, ConnectorConfig]]:
    """Yield the connector of each directory that names one; warn of those that can't be read."""
    for name, settings in configuration.directories.items():
        if settings.connector is None:
            continue
        try:
            yield name, load_connectors([settings.connector], providers)[0]
        except ConfigError as error:
            warn(f"{name} can't be compared with its table: {error}")
