"""A Postgres JDBC URL (or a libpq URL or DSN) → connection parameters for libpq.

The parameters are those of pgjdbc ("Connecting to the Database" in its documentation), the result's names those of
libpq. Nothing here prints a password, and no problem text repeats a URL: it may hold one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from urllib.parse import unquote, unquote_plus

from compactory.errors import ConfigError
from compactory.nearest import nearest

__all__ = ["Connection", "checked_url", "parse_url"]

_JDBC = "jdbc:postgresql:"
_DEFAULT_PORT = "5432"

_SHAPE = "expected jdbc:postgresql://HOST[:PORT][,HOST…]/DATABASE[?NAME=VALUE&…] or postgresql://…"

_MALFORMED = (
    "not a valid Postgres URL or DSN; percent-encode @ : / ? # % in user and password, "
    "or give them as connection.user and connection.password"
)
"""In place of libpq's own words, which may repeat a piece of a password."""

_RENAMED = {
    "user": "user",
    "password": "password",
    "sslmode": "sslmode",
    "sslcert": "sslcert",
    "sslkey": "sslkey",
    "sslrootcert": "sslrootcert",
    "sslpassword": "sslpassword",
    "sslNegotiation": "sslnegotiation",
    "channelBinding": "channel_binding",
    "gssEncMode": "gssencmode",
    "kerberosServerName": "krbsrvname",
    "requireAuth": "require_auth",
    "ApplicationName": "application_name",
    "connectTimeout": "connect_timeout",
    "loginTimeout": "connect_timeout",
}

# Parameters that steer the Java driver only: they change neither the server's answers nor the records.
_DRIVER_ONLY = frozenset(
    """
    adaptiveFetch adaptiveFetchMaximum adaptiveFetchMinimum allowEncodingChanges assumeMinServerVersion autosave
    binaryTransfer binaryTransferDisable binaryTransferEnable cancelSignalTimeout cleanupSavepoints
    databaseMetadataCacheFields databaseMetadataCacheFieldsMiB defaultRowFetchSize disableColumnSanitiser
    escapeSyntaxCallMode groupStartupParameters hideUnprivilegedObjects hostRecheckSeconds logServerErrorDetail
    loggerFile loggerLevel logUnclosedConnections maxResultBuffer maxSendBufferSize preferQueryMode
    preparedStatementCacheQueries preparedStatementCacheSizeMiB prepareThreshold protocolVersion
    quoteReturningIdentifiers raiseExceptionOnSilentRollback readOnlyMode receiveBufferSize reWriteBatchedInserts
    sendBufferSize socketTimeout sslResponseTimeout stringtype unknownLength xmlFactoryFactory
    """.split()  # noqa: SIM905  # a table
)

_REFUSED = {
    "authenticationPluginClassName": "Java classes can't be loaded; give connection.user and connection.password",
    "gsslib": "choose by gssEncMode and the Kerberos configuration of the host",
    "jaasApplicationName": "JAAS is Java's; libpq reads the host's Kerberos configuration",
    "jaasLogin": "JAAS is Java's; libpq reads the host's Kerberos configuration",
    "localSocketAddress": "libpq can't bind the local address",
    "readOnly": "a read-only session holds no lease; leave it out",
    "replication": "the source polls, it doesn't replicate; leave it out",
    "socketFactory": "Java classes can't be loaded; name host and port, or a socket folder with postgresql:///…?host=…",
    "socketFactoryArg": "Java classes can't be loaded; leave it out",
    "sslhostnameverifier": "Java classes can't be loaded; choose by sslmode",
    "sslpasswordcallback": "Java classes can't be loaded; give sslpassword",
    "sspiServiceClass": "SSPI is not supported",
    "useSpnego": "SPNEGO is not supported",
}

_SERVER_TYPES = {"any": "any", "primary": "primary", "master": "primary", "preferPrimary": "read-write"}
_STANDBYS = ("secondary", "slave", "preferSecondary", "preferSlave")

_SSL_FACTORIES = {
    "org.postgresql.ssl.NonValidatingFactory": "require",
    "org.postgresql.ssl.LibPQFactory": None,
    "org.postgresql.ssl.jdbc4.LibPQFactory": None,
}


@dataclass(frozen=True, slots=True)
class Connection:
    """Parameters of a connection, by libpq's names. ``repr`` shows no values."""

    conninfo: Mapping[str, str] = field(repr=False)

    @property
    def server(self) -> str:
        """``host:port/database`` for people and logs; no user, no password."""
        hosts = self.conninfo.get("host", "").split(",")
        ports = self.conninfo.get("port", "").split(",")
        ports = ports * len(hosts) if len(ports) == 1 else ports
        places = ",".join(
            f"{host or 'localhost'}:{port or _DEFAULT_PORT}" for host, port in zip(hosts, ports, strict=False)
        )
        return f"{places}/{self.conninfo.get('dbname', '')}"

    def __str__(self) -> str:
        return self.server


def parse_url(url: str, user: str | None = None, password: str | None = None) -> Connection:
    """Return the connection of ``url``. ``user`` and ``password`` are used if the URL has none, as in Java.

    Raises ValueError with one line for each problem. No line has a value of the URL.
    """
    text = url.strip()
    conninfo = _from_jdbc(text) if text.startswith("jdbc:") else _from_libpq(text)
    for name, value in (("user", user), ("password", password)):
        if value is not None:
            conninfo.setdefault(name, value)
    return Connection(MappingProxyType(conninfo))


def checked_url(postgres: str) -> Connection:
    """Return the connection of a URL or DSN. Raises ConfigError with every problem."""
    try:
        return parse_url(postgres)
    except ValueError as error:
        raise ConfigError(f"postgres: {line}" for line in str(error).splitlines()) from None


def _from_libpq(text: str) -> dict[str, str]:
    from psycopg import ProgrammingError
    from psycopg.conninfo import conninfo_to_dict

    if not text.startswith(("postgresql://", "postgres://")) and "=" not in text:
        raise ValueError(f"not a Postgres URL; {_SHAPE}")
    try:
        parsed = conninfo_to_dict(text)
    except ProgrammingError:
        raise ValueError(_MALFORMED) from None
    conninfo = {name: str(value) for name, value in parsed.items() if value is not None}
    if not all(port == "" or _is_port(port) for port in conninfo.get("port", "").split(",")):
        raise ValueError(_MALFORMED)
    return conninfo


def _from_jdbc(text: str) -> dict[str, str]:
    if not text.startswith(_JDBC):
        kind = text.split(":", 2)[1].split("/", maxsplit=1)[0]
        raise ValueError(f"jdbc:{kind} is not a Postgres URL; only Postgres is supported; {_SHAPE}")
    place, _, query = text[len(_JDBC) :].partition("?")
    conninfo = _place(place)
    parameters, problems = _parameters(query)
    problems += _apply(parameters, conninfo)
    if problems:
        raise ValueError("\n".join(problems))
    return conninfo


def _place(place: str) -> dict[str, str]:
    """Hosts, ports and database of the part before ``?``; without ``//`` it is just a database on localhost."""
    if not place.startswith("//"):
        database = unquote(place.removeprefix("/"))
        return {"host": "localhost", "port": _DEFAULT_PORT} | ({"dbname": database} if database else {})
    authority, _, database = place[2:].partition("/")
    if "@" in authority:
        raise ValueError(
            "a JDBC URL has no user:password@ part; give connection.user and connection.password, or ?user=…&password=…"
        )
    hosts, ports = zip(*(_host_and_port(item) for item in (authority or "localhost").split(",")), strict=True)
    conninfo = {"host": ",".join(hosts), "port": ",".join(ports)}
    return conninfo | ({"dbname": unquote(database)} if database else {})


def _host_and_port(item: str) -> tuple[str, str]:
    if item.startswith("["):  # [IPv6]:port
        host, bracket, suffix = item[1:].partition("]")
        port = suffix.removeprefix(":")
        valid = bool(bracket) and (not suffix or suffix.startswith(":"))
    else:
        host, _, port = item.partition(":")
        valid = True
    if not valid or (port and not _is_port(port)):
        raise ValueError(f"a port must be a number from 1 to 65535; {_SHAPE}")
    return host or "localhost", port or _DEFAULT_PORT


def _is_port(text: str) -> bool:
    return text.isascii() and text.isdigit() and 0 < int(text) < 65536


def _parameters(query: str) -> tuple[dict[str, str], list[str]]:
    parameters: dict[str, str] = {}
    problems: list[str] = []
    names = {*_RENAMED, *_DRIVER_ONLY, *_REFUSED, *_SPECIAL}
    for part in filter(None, query.split("&")):
        name, _, value = part.partition("=")
        name = unquote_plus(name)
        if name not in names:
            problems.append(f"unknown URL parameter {name}{nearest(name, names)}")
        parameters[name] = unquote_plus(value)
    return parameters, problems


def _apply(parameters: Mapping[str, str], conninfo: dict[str, str]) -> list[str]:
    """Translate ``parameters`` into ``conninfo``; parameters that can't be translated come back as problems."""
    problems: list[str] = []
    for name, value in parameters.items():
        if name in _RENAMED:
            conninfo[_RENAMED[name]] = value
        elif name in _REFUSED:
            problems.append(f"URL parameter {name}: {_REFUSED[name]}")
        elif name in _SPECIAL and (problem := _SPECIAL[name](value, conninfo)):
            problems.append(f"URL parameter {name}: {problem}")
    return problems


def _ssl(value: str, conninfo: dict[str, str]) -> str | None:
    """``ssl=true`` (or a bare ``ssl``) means verify-full unless sslmode says otherwise; ``ssl=false`` says nothing."""
    if value.lower() in {"", "true"}:
        conninfo.setdefault("sslmode", "verify-full")
        return None
    return None if value.lower() == "false" else "must be true or false"


def _ssl_factory(value: str, conninfo: dict[str, str]) -> str | None:
    if value not in _SSL_FACTORIES:
        return "Java classes can't be loaded; choose by sslmode"
    if (mode := _SSL_FACTORIES[value]) is not None:
        conninfo["sslmode"] = mode
    return None


def _server_type(value: str, conninfo: dict[str, str]) -> str | None:
    if value in _SERVER_TYPES:
        conninfo["target_session_attrs"] = _SERVER_TYPES[value]
        return None
    if value in _STANDBYS:
        return f"{value} asks for a standby, whose snapshots list no running transactions; use primary"
    return f"must be one of {', '.join(_SERVER_TYPES)}"


def _schema(value: str, conninfo: dict[str, str]) -> str | None:
    escaped = value.replace("\\", "\\\\").replace(" ", "\\ ")
    return _options(f"-c search_path={escaped}", conninfo)


def _options(value: str, conninfo: dict[str, str]) -> str | None:
    conninfo["options"] = f"{conninfo.get('options', '')} {value}".strip()
    return None


def _keepalive(value: str, conninfo: dict[str, str]) -> str | None:
    conninfo["keepalives"] = "1" if value.lower() in {"", "true"} else "0"
    return None


def _load_balance(value: str, conninfo: dict[str, str]) -> str | None:
    conninfo["load_balance_hosts"] = "random" if value.lower() in {"", "true"} else "disable"
    return None


_SPECIAL: dict[str, Callable[[str, dict[str, str]], str | None]] = {
    "ssl": _ssl,
    "sslfactory": _ssl_factory,
    "targetServerType": _server_type,
    "currentSchema": _schema,
    "options": _options,
    "tcpKeepAlive": _keepalive,
    "loadBalanceHosts": _load_balance,
}
