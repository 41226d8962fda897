"""The configuration of one run: flags beat environment variables, those beat compactory.toml.

Variables and flags replace values of the file, which are then checked together; all problems are raised at once.
Commands that need Kafka or a database ask for the address; if it is missing, the error names the remedy.
"""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from compactory.directory import Directory
from compactory.errors import ConfigError
from compactory.kafka.client import Kafka
from compactory.kafka.errors import property_problems
from compactory.nearest import nearest
from compactory.storage.backend import Backend
from compactory_api.http.access import Client, Tokens
from compactory_api.http.listen import Listen, parse_proxies
from compactory_api.mastered.servers import Servers
from compactory_api.options import ServerOptions

from .environment import VARIABLES, Environment, read_environment
from .flags import Flags, LogFormat, LogLevel
from .settings_file import DirectorySettings, SettingsReader

if TYPE_CHECKING:
    from compactory_connectors.postgres.jdbc_url import Connection

    from .remote import RemoteServer

__all__ = ["Configuration", "load_configuration"]

T = TypeVar("T")

_DEFAULT_FILE = Path("compactory.toml")
_DEFAULT_LISTEN = "127.0.0.1:8080"


@dataclass(frozen=True, slots=True, kw_only=True)
class Configuration:
    """The settings that a command may need; immutable, its ``repr`` shows no secret."""

    file: Path | None
    """The compactory.toml that was read."""
    directories: Mapping[str, DirectorySettings]
    """The directories of compactory.toml by name."""
    url: str | None
    """Base URL of a server to ask in place of Kafka; None when --kafka says otherwise."""
    listen: str
    """HOST:PORT to serve HTTP on."""
    server_options: ServerOptions
    """The options of an HTTP server that the settings file has."""
    worker_listen: str | None
    """HOST:PORT for a worker's probes where the environment gives one; [http] listen is the server's own."""
    tokens: Tokens
    """Bearer tokens: those a server accepts, and with which a client command asks one."""
    console: Mapping[str, Any] = field(repr=False)
    """The section [console]: servers, token, prefix."""
    topic_defaults: tuple[int, int]
    """Partitions and replicas of topics that `topic create` makes; -1: the broker's default."""
    backend: Backend | None
    """The backend of [store]."""
    store_options: Mapping[str, Any]
    """The other options of [store], for ``serve``."""
    log_level: LogLevel | None
    log_format: LogFormat | None
    _kafka: Kafka | None
    _postgres: str | None = field(repr=False)
    _postgres_origin: str

    def kafka(self) -> Kafka:
        """Return the cluster. Raises ConfigError if it is not configured."""
        if self._kafka is None:
            raise ConfigError(
                "which Kafka? give --kafka HOST:PORT, set COMPACTORY_KAFKA,"
                f" or write bootstrap.servers into [kafka] of {self.file or _DEFAULT_FILE}"
            )
        return self._kafka

    def postgres(self) -> Connection:
        """Return the database. Raises ConfigError if it is not configured or its URL is malformed."""
        from compactory_connectors.postgres.jdbc_url import parse_url

        if self._postgres is None:
            raise ConfigError(
                "which database? give --postgres postgresql://USER@HOST/DATABASE, set COMPACTORY_POSTGRES,"
                f" or write url into [postgres] of {self.file or _DEFAULT_FILE}"
            )
        try:
            return parse_url(self._postgres)
        except ValueError as error:
            raise ConfigError(f"{self._postgres_origin}: {line}" for line in str(error).splitlines()) from None

    def server(self, url: str | None = None, *, admin: bool = False, orders: bool = False) -> RemoteServer:
        """Return the server at ``url``, else at COMPACTORY_URL.

        ``admin``: ask with the admin's token where there is one; ``orders``: the same, for calls that need it.
        """
        from .remote import RemoteServer

        token = (self.tokens.admin if admin or orders else None) or self.tokens.for_reading
        return RemoteServer(url or self.url or "", token, orders=orders)

    @property
    def names_postgres(self) -> bool:
        """Return True if a database is configured."""
        return self._postgres is not None

    @property
    def names_kafka(self) -> bool:
        """Return True if a cluster is configured."""
        return self._kafka is not None

    def chosen(self, names: Iterable[str], command: str) -> list[str]:
        """Return these names without repetitions, else all of compactory.toml. Raises ConfigError if there are none."""
        chosen_names = list(dict.fromkeys(names)) or list(self.directories)
        if not chosen_names:
            raise ConfigError(
                f"which directories? name topics: compactory {command} TOPIC…,"
                " or describe them as [directories.NAME] in compactory.toml"
            )
        return chosen_names

    def directory(self, name: str) -> Directory[Any] | None:
        """Return the directory of this name in compactory.toml, or None."""
        settings = self.directories.get(name)
        return settings.directory if settings else None


def load_configuration(flags: Flags, environment: Environment | None = None) -> Configuration:
    """Read file and environment, merge, check. Raises ConfigError with every problem found."""
    environment = environment if environment is not None else read_environment()
    path, document, problems = _read_file(flags, environment)
    origins = _replace_values(document, flags, environment)
    reader = SettingsReader(path, document, origins)
    postgres, http = reader.section("postgres"), reader.section("http")
    backend, store_options = reader.store()
    clients = tuple(reader.clients(http.pop("clients", {})))
    directories, topic_defaults, console = reader.directories(), reader.topic_defaults(), reader.console()
    reader.problems += environment.problems
    kafka = _kafka(reader, flags, environment)
    url = None if flags.kafka else environment.get("URL")
    listen = http.get("listen", _DEFAULT_LISTEN)
    proxies = _parsed(reader, "proxies", parse_proxies, http.get("proxies"))
    _parsed(reader, "listen", Listen.parse, listen)
    _parsed(reader, "url", _server_base, url)
    advertised = _parsed(reader, "advertised", _server_base, http.get("advertised"))
    servers = _servers(reader, http)
    configuration = Configuration(
        file=path,
        directories=directories,
        url=url,
        listen=listen,
        server_options=ServerOptions(advertised=advertised, servers=servers, proxies=proxies or ()),
        worker_listen=environment.get("LISTEN"),
        log_level=_choice(reader, LogLevel, flags.log_level, environment, "LOG_LEVEL"),
        log_format=_choice(reader, LogFormat, flags.log_format, environment, "LOG_FORMAT"),
        tokens=_tokens(reader, http, clients),
        console=console,
        topic_defaults=topic_defaults,
        backend=backend,
        store_options=store_options,
        _kafka=kafka,
        _postgres=postgres.get("url"),
        _postgres_origin=reader.origin("postgres", "url"),
    )
    if problems := [*problems, *reader.problems]:
        raise ConfigError(problems)
    return configuration


def _read_file(flags: Flags, environment: Environment) -> tuple[Path | None, dict[str, Any], list[str]]:
    """Return path and document of compactory.toml, and why it can't be read."""
    named = flags.config or environment.get("CONFIG")
    path = Path(named) if named else _DEFAULT_FILE
    if not named and not path.exists():
        return None, {}, []
    try:
        return path, tomllib.loads(path.read_bytes().decode()), []
    except OSError as error:
        problem = f"can't be read: {error.strerror}"
    except tomllib.TOMLDecodeError as error:
        problem = f"not valid TOML: {error}"
    except UnicodeDecodeError as error:
        problem = f"is not UTF-8 text (byte {error.start})"
    return path, {}, [f"{path}: {problem}"]


def _replace_values(document: dict[str, Any], flags: Flags, environment: Environment) -> dict[tuple[str, str], str]:
    """Put the values of variables and flags into a document. Return their origins by section and key."""
    values: dict[tuple[str, str], str] = {}
    origins: dict[tuple[str, str], str] = {}
    for variable, place in VARIABLES.items():
        if place is not None and (text := environment.get(variable)) is not None:
            values[place], origins[place] = text, f"COMPACTORY_{variable}"
    if flags.postgres:
        values["postgres", "url"], origins["postgres", "url"] = flags.postgres, "--postgres"
    for (section, key), text in values.items():
        if isinstance(present := document.setdefault(section, {}), dict):
            present[key] = text
    return origins | {("http", "url"): "COMPACTORY_URL"}


def _kafka(reader: SettingsReader, flags: Flags, environment: Environment) -> Kafka | None:
    file_properties = reader.kafka()
    properties = file_properties | dict(environment.kafka)
    origins = dict.fromkeys(file_properties, reader.prefix + "[kafka]")
    origins |= {name: f"COMPACTORY_KAFKA_{name.upper().replace('.', '_')}:" for name in environment.kafka}
    for value, origin in ((environment.get("KAFKA"), "COMPACTORY_KAFKA:"), (flags.kafka, "--kafka:")):
        if value:
            properties["bootstrap.servers"], origins["bootstrap.servers"] = value, origin
    if properties.keys().isdisjoint({"bootstrap.servers", "metadata.broker.list"}):
        reader.problems += [_with_origin(problem, origins) for _, problem in property_problems(properties)]
        return None
    try:
        return Kafka(properties)
    except ConfigError as error:
        reader.problems += [_with_origin(problem, origins) for problem in error.problems]
        return None


def _with_origin(problem: str, origins: Mapping[str, str]) -> str:
    """Return the problem with the origin of the property that it names."""
    for name, origin in origins.items():
        if f"'{name}'" in problem.partition(":")[0] or problem.startswith((f"{name}:", f"{name}=", f"{name} ")):
            return f"{origin} {problem}"
    return problem


def _parsed(reader: SettingsReader, key: str, parse: Callable[[str], T], text: str | None) -> T | None:
    """Return the parsed value of a key of [http], None without one. Keep the problems of a malformed one."""
    try:
        return parse(text) if text is not None else None
    except ConfigError as error:
        for problem in error.problems:
            reader.problem("http", key, problem.partition(": ")[2])
        return None


def _server_base(url: str) -> str:
    """Return the URL without its login. Raises ConfigError."""
    from compactory_client.server_url import ServerUrl  # slow: with httpx2

    return ServerUrl.parse(url).base


def _choice(reader: SettingsReader, kind: Any, flag: Any, environment: Environment, name: str) -> Any:
    value = flag or environment.get(name)
    choices = [item.value for item in kind]
    if value is None or value in choices:
        return None if value is None else kind(value)
    hint = nearest(value, choices) or f"; choose {', '.join(choices)}"
    reader.problems.append(f"COMPACTORY_{name}: {value!r} is not one of its values{hint}")
    return None


def _servers(reader: SettingsReader, http: Mapping[str, Any]) -> Servers | None:
    try:
        return Servers.parse(http.get("servers_secret"), http.get("servers"))
    except ConfigError as error:
        remedy = "(or COMPACTORY_HTTP_SERVERS, _HTTP_SERVERS_SECRET)"
        reader.problems += [f"[http] {problem} {remedy}" for problem in error.problems]
        return None


def _tokens(reader: SettingsReader, http: Mapping[str, Any], clients: tuple[Client, ...]) -> Tokens:
    try:
        return Tokens(**{name: http.get(f"{name}_token") for name in ("read", "write", "admin")}, clients=clients)
    except ConfigError as error:
        reader.problems += error.problems
        return Tokens()
