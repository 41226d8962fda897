"""``compactory console``: serves the console, in which a browser shows directories and workers."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Annotated

from compactory.errors import ConfigError

from ..context.flags import LogLevel, option
from ..context.loading import Providers, load_connectors
from ..context.session import Problems, begin, refuse
from ..views.terminal import warn

if TYPE_CHECKING:
    from compactory_connectors.source.config.connector import ConnectorConfig
    from compactory_console import ConsoleOptions

    from ..context.configuration import Configuration

__all__ = ["console_options", "run_console"]

_LISTEN = "127.0.0.1:8081"


def run_console(
    listen: Annotated[str, option("--listen", "HOST:PORT", "Address to listen on.")] = _LISTEN,
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
    options = console_options(configuration, place.host, provider or (), servers=server or ())
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


def console_options(
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
    problems = Problems()
    access = problems.of(partial(Access.for_listener, host, tokens, no_auth=False, anonymous=Scope.ADMIN))
    problems.raise_any()
    assert access is not None
    addresses = [*section.get("servers", ()), *servers] or ([configuration.url] if configuration.url else [])
    return ConsoleOptions(
        servers=addresses,
        access=access,
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
