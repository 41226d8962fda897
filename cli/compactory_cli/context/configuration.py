"""The configuration of one run: flags beat environment variables, those beat compactory.toml.

Loading checks everything and raises all problems together. Commands that need Kafka or a database ask for the address;
if it is missing, the error names the remedy.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from compactory.directory import Directory
from compactory.errors import ConfigError
from compactory.kafka.client import Kafka
from compactory.kafka.errors import property_problems
from compactory.nearest import nearest
from compactory.storage.backend import Backend
from compactory_api.http.access import Tokens
from compactory_api.http.listen import Listen, parse_proxies
from compactory_api.mastered.servers import Servers
from compactory_api.options import ServerOptions

from .environment import Environment, read_environment
from .flags import Flags, LogFormat, LogLevel
from .settings_file import DirectorySettings, SettingsFile, StoreSettings, read_settings

if TYPE_CHECKING:
    from compactory_connectors.outbox.rules import TopicRules
    from compactory_connectors.postgres.jdbc_url import Connection

    from .remote import RemoteServer

__all__ = ["Configuration", "load_configuration"]

_DEFAULT_FILE = Path("compactory.toml")
_DEFAULT_LISTEN = "127.0.0.1:8080"


@dataclass(frozen=True, slots=True)
class _Setting:
    """A value and its origin, for errors."""

    value: str = field(repr=False)
    origin: str


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
    jdbc_password: str | None = field(repr=False)
    """Password of the database behind a JDBC URL that a load reads."""
    console: Mapping[str, Any] = field(repr=False)
    """The section [console]: servers, token, prefix."""
    outbox_topics: Mapping[str, TopicRules]
    """The rules of single topics in [outbox.topics]."""
    topic_defaults: tuple[int, int]
    """Partitions and replicas of topics that `topic create` makes; -1: the broker's default."""
    store_options: Mapping[str, Any]
    """The other options of [store], for ``serve``."""
    log_level: LogLevel | None
    log_format: LogFormat | None
    _kafka: Kafka | None
    _postgres: _Setting | None
    _store: StoreSettings | None

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
            return parse_url(self._postgres.value)
        except ValueError as error:
            raise ConfigError(f"{self._postgres.origin}: {line}" for line in str(error).splitlines()) from None

    def server(
        self, url: str | None = None, *, admin: bool = False, orders: bool = False, timeout: float = 10.0
    ) -> RemoteServer:
        """Return the server at ``url``, else at COMPACTORY_URL.

        ``admin``: ask with the admin's token where there is one; ``orders``: the same, for calls that need it.
        """
        from .remote import RemoteServer

        token = (self.tokens.admin if admin or orders else None) or self.tokens.for_reading
        return RemoteServer(url or self.url or "", token, timeout, orders=orders)

    @property
    def names_postgres(self) -> bool:
        """Return True if a database is configured."""
        return self._postgres is not None

    @property
    def names_kafka(self) -> bool:
        """Return True if a cluster is configured."""
        return self._kafka is not None

    def backend(self) -> Backend | None:
        """Return the backend of [store]; None without one. Raises ConfigError."""
        if self._store is None:
            return None
        from compactory import Memory, RocksDB

        try:
            if self._store.backend == "memory":
                return Memory(self._store.path, **self._store.settings)
            return RocksDB(self._store.path or "", **self._store.settings)
        except ConfigError as error:
            raise ConfigError(f"{self.file}: [store] {problem}" for problem in error.problems) from error

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
    settings = _settings(flags, environment)
    problems = [*settings.problems, *environment.problems]
    kafka = _kafka(flags, environment, settings, problems)
    listen = _http_setting(environment, settings, "LISTEN", "listen")
    advertised = _http_setting(environment, settings, "HTTP_ADVERTISED", "advertised")
    proxies = _http_setting(environment, settings, "HTTP_PROXIES", "proxies")
    url = None if flags.kafka else _first(environment, "URL")
    problems += _problems_of(proxies, parse_proxies) + _problems_of(listen, Listen.parse)
    problems += _problems_of(url, _server_base) + _problems_of(advertised, _server_base)
    servers = _servers(environment, settings, problems)
    level = _choice(LogLevel, flags.log_level, environment, "LOG_LEVEL", problems)
    form = _choice(LogFormat, flags.log_format, environment, "LOG_FORMAT", problems)
    tokens = _tokens(environment, settings, problems)
    if problems:
        raise ConfigError(problems)
    return Configuration(
        file=settings.path,
        directories=settings.directories,
        url=url.value if url else None,
        listen=listen.value if listen else _DEFAULT_LISTEN,
        server_options=ServerOptions(
            advertised=_server_base(advertised.value) if advertised else None,
            servers=servers,
            proxies=parse_proxies(proxies.value) if proxies else (),
        ),
        worker_listen=environment.get("LISTEN"),
        tokens=tokens,
        jdbc_password=environment.get("JDBC_PASSWORD"),
        console=settings.console,
        outbox_topics=settings.outbox_topics,
        topic_defaults=(settings.topic_defaults.get("partitions", -1), settings.topic_defaults.get("replication", -1)),
        store_options=settings.store_options,
        log_level=level,
        log_format=form,
        _kafka=kafka,
        _store=settings.store,
        _postgres=_from_flag(flags.postgres, "--postgres")
        or _first(environment, "POSTGRES", settings.postgres, f"{settings.path}: [postgres] url"),
    )


def _settings(flags: Flags, environment: Environment) -> SettingsFile:
    named = environment.get("CONFIG")
    if flags.config is not None:
        return read_settings(flags.config)
    if named is not None:
        return read_settings(Path(named))
    return read_settings(_DEFAULT_FILE) if _DEFAULT_FILE.exists() else SettingsFile()


def _kafka(flags: Flags, environment: Environment, settings: SettingsFile, problems: list[str]) -> Kafka | None:
    properties = {name: _Setting(value, f"{settings.path}: [kafka]") for name, value in settings.kafka.items()}
    for name, value in environment.kafka.items():
        properties[name] = _Setting(value, f"COMPACTORY_KAFKA_{name.upper().replace('.', '_')}:")
    servers = _from_flag(flags.kafka, "--kafka") or _first(environment, "KAFKA")
    if servers is not None:
        properties["bootstrap.servers"] = _Setting(servers.value, f"{servers.origin}:")
    if properties.keys().isdisjoint({"bootstrap.servers", "metadata.broker.list"}):
        problems_found = property_problems({name: setting.value for name, setting in properties.items()})
        problems += [_with_origin(problem, properties) for _, problem in problems_found]
        return None
    try:
        return Kafka({name: setting.value for name, setting in properties.items()})
    except ConfigError as error:
        problems += [_with_origin(problem, properties) for problem in error.problems]
        return None


def _with_origin(problem: str, properties: Mapping[str, _Setting]) -> str:
    """Return the problem with the origin of the property that it names."""
    for name, setting in properties.items():
        if f"'{name}'" in problem.partition(":")[0] or problem.startswith((f"{name}:", f"{name}=", f"{name} ")):
            return f"{setting.origin} {problem}"
    return problem


def _from_flag(value: str | None, name: str) -> _Setting | None:
    return _Setting(value, name) if value else None


def _http_setting(environment: Environment, settings: SettingsFile, variable: str, key: str) -> _Setting | None:
    return _first(environment, variable, settings.http.get(key), f"{settings.path}: [http] {key}")


def _first(environment: Environment, variable: str, written: str | None = None, place: str = "") -> _Setting | None:
    """Return the variable's value, else ``written``, the file's value at ``place``."""
    value = environment.get(variable)
    if value is not None:
        return _Setting(value, f"COMPACTORY_{variable}")
    return _Setting(written, place) if written is not None else None


def _choice(kind: Any, flag: Any, environment: Environment, name: str, problems: list[str]) -> Any:
    value = flag or environment.get(name)
    choices = [item.value for item in kind]
    if value is None or value in choices:
        return None if value is None else kind(value)
    hint = nearest(value, choices) or f"; choose {', '.join(choices)}"
    problems.append(f"COMPACTORY_{name}: {value!r} is not one of its values{hint}")
    return None


def _server_base(url: str) -> str:
    """Return the URL without its login. Raises ConfigError."""
    from compactory_client.server_url import ServerUrl  # slow: with httpx2

    return ServerUrl.parse(url).base


def _problems_of(setting: _Setting | None, parse: Callable[[str], object]) -> list[str]:
    if setting is None:
        return []
    try:
        parse(setting.value)
    except ConfigError as error:
        return [f"{setting.origin}: {problem.partition(': ')[2]}" for problem in error.problems]
    return []


def _servers(environment: Environment, settings: SettingsFile, problems: list[str]) -> Servers | None:
    secret = environment.get("HTTP_SERVERS_SECRET") or settings.http.get("servers_secret")
    try:
        return Servers.parse(secret, environment.get("HTTP_SERVERS") or settings.http.get("servers"))
    except ConfigError as error:
        problems += [
            f"[http] {problem} (or COMPACTORY_HTTP_SERVERS, _HTTP_SERVERS_SECRET)" for problem in error.problems
        ]
        return None


def _tokens(environment: Environment, settings: SettingsFile, problems: list[str]) -> Tokens:
    try:
        scopes = ("read", "write", "admin")
        variables = {name: environment.get(f"HTTP_{name.upper()}_TOKEN") for name in scopes}
        return Tokens(
            **{name: variables[name] or settings.http.get(f"{name}_token") for name in scopes}, clients=settings.clients
        )
    except ConfigError as error:
        problems += error.problems
        return Tokens()
