"""Configuration: what wins, what is refused and how it is said."""

from __future__ import annotations

from pathlib import Path

import pytest

from compactory import ConfigError, Directory, Index, Memory, RocksDB
from compactory_api.http.access import Scope
from compactory_cli.context.configuration import Configuration, load_configuration
from compactory_cli.context.environment import read_environment
from compactory_cli.context.flags import Flags, LogFormat, LogLevel


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def loaded(toml: str | None = None, flags: Flags | None = None, **environment: str) -> Configuration:
    if toml is not None:
        Path("compactory.toml").write_text(toml)
    return load_configuration(flags or Flags(), read_environment(environment))


def problems(toml: str | None = None, flags: Flags | None = None, **environment: str) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        loaded(toml, flags, **environment)
    return caught.value.problems


def test_nothing_given_is_fine_until_it_is_needed(folder: Path) -> None:
    configuration = loaded()
    assert configuration.directories == {}
    assert configuration.listen == "127.0.0.1:8080"
    with pytest.raises(ConfigError, match=r"--kafka HOST:PORT, set COMPACTORY_KAFKA, .* of compactory.toml"):
        configuration.kafka()
    with pytest.raises(ConfigError, match="--postgres postgresql://"):
        configuration.postgres()


def test_flags_beat_the_environment_and_the_environment_beats_the_file(folder: Path) -> None:
    toml = '[kafka]\nbootstrap.servers = "file:1"\n[postgres]\nurl = "postgresql://file/db"\n[http]\nlisten = "file:1"'
    assert loaded(toml).kafka().bootstrap == "file:1"
    assert loaded(toml).listen == "file:1"
    environment = {
        "COMPACTORY_KAFKA": "env:1",
        "COMPACTORY_POSTGRES": "postgresql://env/db",
        "COMPACTORY_LISTEN": "env:1",
        "COMPACTORY_LOG_LEVEL": "debug",
        "COMPACTORY_LOG_FORMAT": "json",
    }
    configuration = loaded(toml, **environment)
    assert configuration.kafka().bootstrap == "env:1"
    assert configuration.postgres().server == "env:5432/db"
    assert configuration.listen == "env:1"
    assert (configuration.log_level, configuration.log_format) == (LogLevel.DEBUG, LogFormat.JSON)
    flags = Flags(kafka="flag:1", postgres="host=flag dbname=db", log_level=LogLevel.ERROR)
    configuration = loaded(toml, flags, **environment)
    assert configuration.kafka().bootstrap == "flag:1"
    assert configuration.postgres().server == "flag:5432/db"
    assert configuration.log_level is LogLevel.ERROR


def test_the_file_is_that_of_the_flag_else_of_the_environment_else_in_the_folder(folder: Path) -> None:
    for name in ("flag", "env"):
        (folder / f"{name}.toml").write_text(f'[kafka]\nbootstrap.servers = "{name}:1"')
    toml = '[kafka]\nbootstrap.servers = "folder:1"'
    assert loaded(toml).kafka().bootstrap == "folder:1"
    assert loaded(toml, COMPACTORY_CONFIG="env.toml").kafka().bootstrap == "env:1"
    assert loaded(toml, Flags(config=Path("flag.toml")), COMPACTORY_CONFIG="env.toml").kafka().bootstrap == "flag:1"
    assert problems(COMPACTORY_CONFIG="gone.toml") == ["gone.toml: can't be read: No such file or directory"]


def test_kafka_keys_that_toml_nests_are_joined_again(folder: Path) -> None:
    toml = """
        [kafka]
        bootstrap.servers = "h:1"
        security.protocol = "sasl_ssl"
        sasl.mechanism = "PLAIN"
        "sasl.username" = "me"
        socket.keepalive.enable = true
        [kafka.fetch.wait.max]
        ms = 20
    """
    properties = loaded(toml, COMPACTORY_KAFKA_SASL_PASSWORD="x", COMPACTORY_KAFKA_LOG_LEVEL="3").kafka().properties()
    assert properties == {
        "bootstrap.servers": "h:1",
        "security.protocol": "sasl_ssl",
        "sasl.mechanism": "PLAIN",
        "sasl.username": "me",
        "sasl.password": "x",
        "socket.keepalive.enable": "true",
        "fetch.wait.max.ms": "20",
        "log_level": "3",
    }


def test_any_variable_may_name_a_file_that_holds_the_value(folder: Path) -> None:
    (folder / "secret").write_text("postgresql://me:pass@h/db\n")
    (folder / "servers").write_text("h:9092\n")
    configuration = loaded(COMPACTORY_POSTGRES_FILE="secret", COMPACTORY_KAFKA_FILE="servers")
    assert configuration.postgres().conninfo["password"] == "pass"
    assert configuration.kafka().bootstrap == "h:9092"
    assert problems(COMPACTORY_POSTGRES_FILE="gone", COMPACTORY_URL_FILE="secret", COMPACTORY_URL="http://h") == [
        "COMPACTORY_POSTGRES_FILE: can't read gone: No such file or directory",
        "COMPACTORY_URL_FILE: COMPACTORY_URL is set as well; remove one of them",
    ]


def test_a_property_that_ends_in_file_is_no_file_variable(folder: Path) -> None:
    variables = {"COMPACTORY_KAFKA_SASL_OAUTHBEARER_ASSERTION_PRIVATE_KEY_FILE": "/run/key.pem"}
    assert read_environment(variables).kafka == {"sasl.oauthbearer.assertion.private.key.file": "/run/key.pem"}


def test_an_empty_variable_counts_as_not_set(folder: Path) -> None:
    assert loaded('[kafka]\nbootstrap.servers = "file:1"', COMPACTORY_KAFKA="").kafka().bootstrap == "file:1"


def test_variables_that_kubernetes_sets_for_a_service_are_not_ours(folder: Path) -> None:
    links = {
        "COMPACTORY_PORT": "tcp://10.0.0.1:80",
        "COMPACTORY_SERVICE_HOST": "10.0.0.1",
        "COMPACTORY_KAFKA_PORT": "tcp://10.0.0.2:9092",
        "COMPACTORY_KAFKA_PORT_9092_TCP_ADDR": "10.0.0.2",
        "COMPACTORY_KAFKA_SERVICE_PORT_PLAIN": "9092",
    }
    assert read_environment(links).kafka == {}
    loaded(**links)


def test_servers_of_a_users_tests_are_not_ours(folder: Path) -> None:
    """`docs/testing.md` has users set them; a command in the same shell works on."""
    found = loaded(COMPACTORY_TEST_KAFKA="localhost:9092", COMPACTORY_TEST_POSTGRES="postgresql://u@h/d")
    assert not found.names_postgres


def test_directories_become_directory_objects(folder: Path) -> None:
    (folder / "c.json").write_text("{}")
    toml = """
        [directories.terminals]
        topic = "terminal_acquirer"
        key = "terminalId"
        active = "isActive"
        indexes = [{fields = ["acquirerId"]}, {fields = ["terminalId", "id"], unique = true, name = "both"}]
        connector = "c.json"
        [directories.bare]
    """
    configuration = loaded(toml)
    indexes = [Index("acquirerId"), Index("terminalId", "id", unique=True, name="both")]
    assert configuration.directory("terminals") == Directory(
        "terminals", topic="terminal_acquirer", key="terminalId", active="isActive", indexes=indexes
    )
    assert configuration.directories["terminals"].connector == Path("c.json")
    assert configuration.directory("bare") == Directory("bare")
    assert configuration.directory("other") is None


def test_clients_have_tokens_and_scopes_of_their_own(folder: Path) -> None:
    (folder / "secret").write_text("billing-token\n")
    toml = """
        [http.clients.billing]
        token_file = "secret"
        scopes = {tenants = "write", "*" = "read"}
        [http.clients.support]
        token = "support-token"
        scopes = {tenants = "admin"}
        [directories.tenants]
    """
    found = loaded(toml).tokens.clients
    assert [(client.name, client.token, client.scopes) for client in found] == [
        ("billing", "billing-token", {"tenants": Scope.WRITE, "*": Scope.READ}),
        ("support", "support-token", {"tenants": Scope.ADMIN}),
    ]
    wrong = """
        [http.clients.a]
        token = "t"
        token_file = "gone"
        scopes = {tenant = "read"}
        [http.clients.b]
        token_file = "gone"
        [http.clients.c]
        token = "same"
        scopes = {tenants = "all"}
        [http.clients.d]
        token = "same"
        scopes = {"*" = 1}
        [directories.tenants]
    """
    assert problems(wrong) == [
        "compactory.toml: [http.clients.a] scopes.tenant: no directory; did you mean tenants?",
        "compactory.toml: [http.clients.a] token: give it, or token_file with the path of a file that holds it",
        'compactory.toml: [http.clients.b] scopes: is missing: scopes = {DIRECTORY = "read"}',
        (
            "compactory.toml: [http.clients.b] token_file: gone can't be read: No such file or directory; "
            "relative to this file's folder"
        ),
        "compactory.toml: [http.clients.c] scopes.tenants: 'all' is not one of read, write, admin",
        "compactory.toml: [http.clients.d] scopes.*: 1 is not one of read, write, admin",
        "the client c's token and the client d's token are the same: choose one for each",
    ]


def test_every_problem_is_told_at_once_with_its_place_and_the_nearest_name(folder: Path) -> None:
    toml = """
        kafak = 1
        [kafka]
        bootstrap.server = "h:9092"
        [postgres]
        ulr = "postgresql://h/db"
        [store]
        backend = "rocksdb"
        [http]
        listen = "8080"
        [directories.terminals]
        actve = "isActive"
        key = 1
        indexes = [{field = ["a"]}, "b"]
        connector = "gone.json"
    """
    found = problems(toml, COMPACTORY_KAFKA="h:9092", COMPACTORY_POSTGERS="x", COMPACTORY_LOG_LEVEL="inf")
    assert found == [
        "compactory.toml: [kafak]: unknown section; did you mean kafka?",
        "compactory.toml: [postgres] ulr: unknown key; did you mean url?",
        'compactory.toml: [store] path: the backend "rocksdb" needs a folder: path = "/var/lib/compactory"',
        "compactory.toml: [directories.terminals] actve: unknown key; did you mean active?",
        "compactory.toml: [directories.terminals] key: must be text",
        "compactory.toml: [directories.terminals] indexes[0].field: unknown key; did you mean fields?",
        "compactory.toml: [directories.terminals] indexes[0].fields: must list the names of one or more fields",
        (
            "compactory.toml: [directories.terminals] indexes[1]: "
            'must be a table such as {fields = ["acquirerId"], unique = true}'
        ),
        (
            "compactory.toml: [directories.terminals] connector: there is no file gone.json; "
            "the path is relative to this file's folder"
        ),
        "COMPACTORY_POSTGERS: unknown variable; did you mean COMPACTORY_POSTGRES?",
        (
            "compactory.toml: [kafka] Kafka property 'bootstrap.server': No such configuration property: "
            "\"bootstrap.server\"; did you mean 'bootstrap.servers'?"
        ),
        "compactory.toml: [http] listen: must be HOST:PORT such as 127.0.0.1:8080, with a port up to 65535",
        "COMPACTORY_LOG_LEVEL: 'inf' is not one of its values; did you mean info?",
    ]


def test_a_misspelt_address_of_kafka_is_told_beside_the_other_problems(folder: Path) -> None:
    """Without bootstrap.servers too, and beside servers that are malformed."""
    bootstrap = (
        "compactory.toml: [kafka] Kafka property 'bootstrap.server': No such configuration property: "
        "\"bootstrap.server\"; did you mean 'bootstrap.servers'?"
    )
    listen = "compactory.toml: [http] listen: must be HOST:PORT such as 127.0.0.1:8080, with a port up to 65535"
    toml = '[kafka]\nbootstrap.server = "h:9092"\n[http]\nlisten = "8080"'
    assert problems(toml) == [bootstrap, listen]
    assert problems(toml, COMPACTORY_KAFKA="h:x") == [
        "COMPACTORY_KAFKA: bootstrap.servers: 'h:x' has no port between 1 and 65535",
        bootstrap,
        listen,
    ]


@pytest.mark.parametrize(
    ("toml", "problem"),
    [
        (
            "[kafka",
            "compactory.toml: not valid TOML: Expected ']' at the end of a table declaration (at end of document)",
        ),
        ("kafka = 1", "compactory.toml: [kafka]: must be a section"),
        ('[store]\nbackend = "memroy"', "compactory.toml: [store] backend: 'memroy' is not a backend; did you mean m"),
        ("[store]\nsave_every = 9", 'compactory.toml: [store] path: the backend "memory" needs a folder for that'),
        ('[store]\ncompression = "lz4"', 'compactory.toml: [store] compression: is not for the backend "memory"'),
        (
            '[store]\nbackend="rocksdb"\npath="x"\nsave_every=9',
            'compactory.toml: [store] save_every: is not for the backend "rocksdb"',
        ),
        ('[store]\nbackend="rocksdb"\npath=1', "compactory.toml: [store] path: must be text"),
        (
            '[store]\nbackend="rocksdb"\npath="x"\nblock_cash_bytes=1',
            "compactory.toml: [store] block_cash_bytes: unknown key; did you mean block",
        ),
        (
            '[store]\nmissing_topic="wiat"',
            "compactory.toml: [store] missing_topic: must be one of fail, wait, not 'wiat'",
        ),
        ("[store]\nstart_timeout=0", "compactory.toml: [store] start_timeout: must be a number of seconds above 0"),
        ("[store]\nstall_timeout='1'", "compactory.toml: [store] stall_timeout: must be a number"),
        (
            "[store]\nstart_stale=true",
            'compactory.toml: [store] path: the backend "memory" needs a folder for that',
        ),
        ("[directories.d]\non_stale='rise'", "compactory.toml: [directories.d] directory 'd': on_stale must be one of"),
        ("[kafka]\na = [1]", "compactory.toml: [kafka] a: must be text, a number, true or false"),
        ('[directories]\nx = "t"', "compactory.toml: [directories] x: must be a section: [directories.x]"),
        (
            '[directories."a/b"]\ntopic = "a"',
            "compactory.toml: [directories.a/b] directory 'a/b': the name must be text without",
        ),
        ("[directories.d]\nindexes = [{fields = []}]", "compactory.toml: [directories.d] indexes[0].fields: must list"),
    ],
)
def test_a_bad_file_is_refused(folder: Path, toml: str, problem: str) -> None:
    [found] = problems(toml)
    assert found.startswith(problem)


def test_what_a_store_is_told(folder: Path) -> None:
    """Beside where it keeps entries; numbers may be whole or not."""
    toml = '[store]\nmissing_topic = "wait"\nstart_timeout = 90\npolling_timeout = 1.5\n'
    assert loaded("").store_options == {}
    assert loaded(toml).store_options == {"missing_topic": "wait", "start_timeout": 90, "polling_timeout": 1.5}
    disk = 'backend = "rocksdb"\npath = "data"\nstart_stale = true\n'
    assert loaded(toml + disk).store_options["start_stale"] is True
    backend = loaded(toml + disk).backend
    assert isinstance(backend, RocksDB)
    saved = '[store]\npath = "data"\nsave_every = 60\nstart_stale = true\n'
    assert isinstance(loaded(saved).backend, Memory)
    with pytest.raises(ConfigError, match="save_every must be a number of seconds above 0"):
        loaded(saved.replace("60", "0"))
    strict = loaded('[directories.d]\nmax_age = 60\non_stale = "raise"\nkeep_changes = true').directories["d"].directory
    assert (strict.max_age, strict.on_stale, strict.keep_changes) == (60, "raise", True)


def test_the_rules_of_a_directory_mastered_in_kafka(folder: Path) -> None:
    """All problems are told at once: of the rules, of the schema's file, of rules without the master."""
    (folder / "tenant.json").write_text('{"type": "object"}')
    toml = """
        [directories.tenants]
        mastered = "kafka"
        schema = "tenant.json"
        unique = [["email"]]
        references = {a = "b"}
        internal = ["secret"]
        """
    rules = loaded(toml).directories["tenants"].directory.rules
    assert rules is not None
    assert (rules.schema, rules.unique, rules.internal) == ({"type": "object"}, (("email",),), ("secret",))
    (folder / "list.json").write_text("[]")
    bad = """
        [directories.a]
        mastered = "kafka"
        schema = "nowhere.json"
        key_pattern = "("
        [directories.b]
        unique = []
        [directories.c]
        mastered = "kafk"
        [directories.d]
        mastered = "kafka"
        schema = "list.json"
        references = {acquirer = "gone"}
        unique = [["email"]]
        """
    found = problems(bad)
    assert len(found) == 7
    assert ["there is no directory 'gone'" in found[-1], "needs an index" in found[-2]] == [True, True]


def test_a_store_on_disk(folder: Path) -> None:
    """The folder is relative to the file; what is wrong with its settings is told with the place."""
    assert loaded("").backend is None
    assert loaded('[store]\nbackend = "memory"').backend is None
    toml = """
        [store]
        backend = "rocksdb"
        path = "data"
        block_cache_bytes = 1048576
        compression = "zstd"
    """
    backend = loaded(toml).backend
    assert isinstance(backend, RocksDB)
    assert backend.path == Path("data")
    assert not backend.path.exists()
    with pytest.raises(ConfigError) as refused:
        loaded(toml.replace("zstd", "zip"))
    assert refused.value.problems == [
        "compactory.toml: [store] compression must be one of none, lz4, zstd, snappy, not 'zip'"
    ]


@pytest.mark.parametrize(
    ("flags", "environment", "problem"),
    [
        (Flags(kafka="h:x"), {}, "--kafka: bootstrap.servers: 'h:x' has no port"),
        (Flags(), {"COMPACTORY_KAFKA": "http://h:1"}, "COMPACTORY_KAFKA: bootstrap.servers"),
        (
            Flags(kafka="h:1"),
            {"COMPACTORY_KAFKA_SASL_MECANISM": "PLAIN"},
            "COMPACTORY_KAFKA_SASL_MECANISM: Kafka property 'sasl.mecanism': No such configuration property",
        ),
        (Flags(), {"COMPACTORY_URL": "h:8080"}, "COMPACTORY_URL: must be http://HOST[:PORT]"),
        (Flags(), {"COMPACTORY_URL": "http://h:8o80"}, "COMPACTORY_URL: must be http://HOST[:PORT]"),
        (Flags(), {"COMPACTORY_HTTP_SERVERS": "10.0.0.0/8"}, "[http] servers_secret: is missing"),
        (Flags(), {"COMPACTORY_HTTP_SERVERS_SECRET": "s" * 32}, "[http] servers: is missing"),
        (
            Flags(),
            {"COMPACTORY_HTTP_SERVERS_SECRET": "s" * 32, "COMPACTORY_HTTP_SERVERS": "10.0.0.1/8"},
            "[http] servers: '10.0.0.1/8'",
        ),
        (Flags(), {"COMPACTORY_HTTP_PROXIES": "10.0.0.1, *"}, "COMPACTORY_HTTP_PROXIES: '*' is not an IP address"),
        (Flags(), {"COMPACTORY_HTTP_PROXIES": "10.0.0.1/8"}, "COMPACTORY_HTTP_PROXIES: '10.0.0.1/8' is not an IP"),
        (Flags(), {"COMPACTORY_HTTP_ADVERTISED": "h:8080"}, "COMPACTORY_HTTP_ADVERTISED: must be http://HOST[:PORT]"),
        (Flags(), {"COMPACTORY_LISTEN": "h:99999"}, "COMPACTORY_LISTEN: must be HOST:PORT"),
        (Flags(), {"COMPACTORY_LOG_FORMAT": "xml"}, "COMPACTORY_LOG_FORMAT: 'xml' is not one of its values; choose"),
    ],
)
def test_a_bad_value_is_refused_where_it_was_given(
    folder: Path, flags: Flags, environment: dict[str, str], problem: str
) -> None:
    [found] = problems(None, flags, **environment)
    assert found.startswith(problem)


def test_a_kafka_flag_means_that_no_server_is_asked(folder: Path) -> None:
    assert loaded(COMPACTORY_URL="http://h:8080").url == "http://h:8080"
    assert loaded(None, Flags(kafka="h:1"), COMPACTORY_URL="http://h:8080").url is None


def test_no_secret_is_shown(folder: Path) -> None:
    login = 'security.protocol = "SASL_SSL"\nsasl.mechanism = "PLAIN"\nsasl.username = "u"\nsasl.password = "s3cr3t"'
    toml = f'[kafka]\nbootstrap.servers = "h:1"\n{login}\n[postgres]\nurl = "postgresql://u:s3cr3t@h/d"'
    configuration = loaded(toml, COMPACTORY_KAFKA_SSL_KEY_PASSWORD="s3cr3t")
    assert "s3cr3t" not in repr(configuration)
    assert "s3cr3t" not in repr(Flags(postgres="postgresql://u:s3cr3t@h/d"))
    configuration = loaded(None, Flags(postgres="postgresql://u:s3cr3t/@h/d"))
    with pytest.raises(ConfigError, match="--postgres: ") as caught:
        configuration.postgres()
    assert "s3cr3t" not in str(caught.value)
