"""docker-compose.yml: valid by the specification's schema, hardened, and its commands run on real servers."""

from __future__ import annotations

import json
import os
import re
import stat
import subprocess
import tomllib
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest
from jsonschema.validators import validator_for

from compactory_cli.stack.postgres import PostgresServer, embedded_binaries
from tests.conftest import needs_apache_kafka
from tests.deploy.composition import Composition, compose
from tests.deploy.image import ROOT
from tests.source.workload import wait_until
from tests.stack.apache_kafka import ApacheKafka
from tests.stack.postgres_copies import new_server

SCHEMA = Path(__file__).with_name("schema") / "compose-spec.json"
OURS = ("install", "adopt", "rights", "source", "api")
SUPERUSER = "postgres"


def test_it_is_valid_by_the_schema() -> None:
    schema = json.loads(SCHEMA.read_text())
    problems = [error.message for error in validator_for(schema)(schema).iter_errors(compose())]
    assert problems == []


def test_what_it_refers_to_is_there() -> None:
    document = compose()
    for kind in ("configs", "secrets"):
        used = {
            item["source"] if isinstance(item, dict) else item
            for service in document["services"].values()
            for item in service.get(kind, ())
        }
        assert used == set(document[kind])
    assert all((ROOT / config["file"]).is_file() for config in document["configs"].values())
    volumes = {volume.partition(":")[0] for s in document["services"].values() for volume in s.get("volumes", ())}
    assert volumes == set(document["volumes"])
    assert os.access(ROOT / document["configs"]["database.sh"]["file"], os.X_OK)
    ignored = (ROOT / ".gitignore").read_text().splitlines()
    assert all(f"{Path(secret['file']).parent}/" in ignored for secret in document["secrets"].values())


@pytest.mark.parametrize("name", sorted(compose()["services"]))
def test_every_service_is_hardened(name: str) -> None:
    service = compose()["services"][name]
    tag = service["image"].partition(":")[2]
    assert re.match(r"\d+\.\d+", tag), "pinned by a minor version at least"
    assert service["cap_drop"] == ["ALL"]
    assert service["security_opt"] == ["no-new-privileges:true"]
    limits = service["deploy"]["resources"]["limits"]
    assert {"cpus", "memory", "pids"} <= limits.keys()
    assert service["restart"] in {"unless-stopped", "on-failure"}
    assert "privileged" not in service
    if name in OURS:
        assert service["read_only"] is True
        assert "user" not in service, "the image's own, which is not root"
    else:
        assert not service["user"].startswith("0")
    assert "healthcheck" in service
    assert not any("PASSWORD" in key and not key.endswith("_FILE") for key in service.get("environment", {}))


def test_the_image_bears_our_version_and_only_the_api_is_published() -> None:
    services = compose()["services"]
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    assert {services[name]["image"] for name in OURS} == {f"compactory:{version}"}
    assert {name for name, service in services.items() if "ports" in service} == {"api"}
    assert services["api"]["ports"] == ["127.0.0.1:8080:8080"]


def test_secrets_are_random_and_made_once(tmp_path: Path) -> None:
    script = ROOT / "deploy" / "compose" / "secrets.sh"
    subprocess.run([script, tmp_path / "one"], check=True)
    subprocess.run([script, tmp_path / "two"], check=True)
    names = {Path(secret["file"]).name for secret in compose()["secrets"].values()}
    assert {file.name for file in (tmp_path / "one").iterdir()} == names
    assert all((tmp_path / "one" / name).read_text() != (tmp_path / "two" / name).read_text() for name in names)
    assert stat.S_IMODE((tmp_path / "one").stat().st_mode) == 0o700
    again = subprocess.run([script, tmp_path / "one"], capture_output=True, text=True, check=False)
    assert again.returncode == 1
    assert "exists already" in again.stderr


@pytest.fixture
def own_kafka() -> Iterator[ApacheKafka]:
    """A Kafka with the settings of the file, but for its places."""
    needs_apache_kafka()
    variables = compose()["services"]["kafka"]["environment"]
    settings = {
        name.removeprefix("KAFKA_").lower().replace("_", "."): value
        for name, value in variables.items()
        if name.startswith("KAFKA_") and name != "KAFKA_HEAP_OPTS"
    }
    for place in ("listeners", "advertised.listeners", "controller.quorum.voters", "log.dirs"):
        del settings[place]
    server = ApacheKafka(settings=settings)
    try:
        server.start()
        yield server
    finally:
        server.remove()


@pytest.fixture
def own_postgres() -> Iterator[PostgresServer]:
    """A Postgres that asks everybody but its superuser for a password."""
    server = new_server(settings={"fsync": "off"})
    try:
        server.start()
        rules = f"host all {SUPERUSER} 127.0.0.1/32 trust\nhost all all 127.0.0.1/32 scram-sha-256\n"
        (server.home / "data" / "pg_hba.conf").write_text(rules)
        with psycopg.connect(server.url(), autocommit=True) as connection:
            connection.execute("SELECT pg_reload_conf()")
        yield server
    finally:
        server.remove()


@pytest.fixture
def composition(
    tmp_path: Path, own_postgres: PostgresServer, own_kafka: ApacheKafka, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Composition]:
    monkeypatch.setenv("PATH", f"{embedded_binaries()}:{os.environ['PATH']}")
    monkeypatch.setenv("PGPORT", str(own_postgres.port))  # what Postgres's own tools take for 5432
    subprocess.run([ROOT / "deploy" / "compose" / "secrets.sh", tmp_path / "secrets"], check=True)
    versions = own_kafka.tool("org.apache.kafka.tools.BrokerApiVersionsCommand")
    found = Composition(
        home=tmp_path,
        replaced={
            "postgres:5432": f"127.0.0.1:{own_postgres.port}",
            "kafka:9092": own_kafka.address,
            "/opt/kafka/bin/kafka-broker-api-versions.sh": str(versions),
        },
    )
    found.place()
    yield found
    found.kill()


def initialise(composition: Composition) -> None:
    """What the image of Postgres does with an empty volume."""
    script = composition.script("postgres", "/docker-entrypoint-initdb.d/database.sh")
    environment = {**os.environ, "POSTGRES_USER": SUPERUSER, "PGHOST": "127.0.0.1"}
    subprocess.run(["bash", "-c", script], env=environment, check=True)


def lookup(composition: Composition, key: str, token: str | None) -> tuple[int, dict[str, object]]:
    url = f"http://127.0.0.1:{composition.ports['api']}/v1/directories/terminal_acquirer/entries/{key}"
    request = urllib.request.Request(url, headers={"Authorization": f"Bearer {token}"} if token else {})
    try:
        with urllib.request.urlopen(request, timeout=10) as answer:
            return answer.status, json.loads(answer.read())
    except urllib.error.HTTPError as error:
        with error:
            return error.code, json.loads(error.read())


@pytest.mark.proof
def test_the_same_commands_run_as_processes(composition: Composition, own_postgres: PostgresServer) -> None:
    initialise(composition)
    composition.up("api")
    assert list(composition.finished) == ["install", "adopt", "rights"]
    wait_until(lambda: composition.healthy("api"), 60, "health of the API")
    assert composition.live("source")
    assert composition.live("api")
    assert composition.healthy("kafka")

    token = (composition.home / "secrets" / "http_read_token").read_text()
    password = (composition.home / "secrets" / "writer_password").read_text()
    writer = own_postgres.url("reference", f"compactory_writer:{password}")
    with psycopg.connect(writer, autocommit=True) as connection:
        connection.execute("INSERT INTO terminal_acquirer (terminal_id, acquirer_id) VALUES ('T1', 'A1')")
        wait_until(lambda: lookup(composition, "T1", token)[0] == 200, what="the row as a lookup")
        assert lookup(composition, "T1", token)[1]["acquirerId"] == "A1"
        connection.execute("UPDATE terminal_acquirer SET is_active = false")
        wait_until(lambda: lookup(composition, "T1", token)[0] == 404, what="the soft delete")
    assert lookup(composition, "T1", None)[0] == 401

    for secret in (composition.home / "secrets").iterdir():
        if secret.name.endswith(("password", "token")):
            assert not any(secret.read_text() in composition.log(name) for name in OURS)
    assert {name: composition.stop(name) for name in ("api", "source")} == {"api": 0, "source": 0}


@pytest.mark.proof
def test_without_its_password_nobody_gets_in(composition: Composition, own_postgres: PostgresServer) -> None:
    initialise(composition)
    with pytest.raises(psycopg.OperationalError, match="password"):
        psycopg.connect(own_postgres.url("reference", "compactory_source"))
