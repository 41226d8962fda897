"""docs/security.md does what it says: each of its settings connects, its certificates are in order."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from compactory import GlobalStore
from compactory_cli.context.configuration import load_configuration
from compactory_cli.context.environment import read_environment
from compactory_cli.context.flags import Flags
from tests.docs.pages import ROOT, Block, blocks
from tests.security.secured_kafka import CLIENT_SECRET, KEY_PASSWORD, PASSWORD, SecuredKafka

PAGE = ROOT / "docs" / "security.md"
SETTINGS = [block for block in blocks("toml") if block.page == PAGE and "[kafka" in block.text]
PORTS = {"9093": "TLS", "9094": "MTLS", "9095": "SASL", "9096": "OIDC"}
SECRETS = {
    "SSL_KEY_PASSWORD": KEY_PASSWORD,
    "SSL_KEYSTORE_PASSWORD": KEY_PASSWORD,
    "SASL_PASSWORD": PASSWORD,
    "SASL_OAUTHBEARER_CLIENT_SECRET": CLIENT_SECRET,
}


def _here(kafka: SecuredKafka, text: str) -> str:
    """The settings with the test's servers and files in the place of those that the page names."""
    for port, listener in PORTS.items():
        text = text.replace(f"kafka.example:{port}", kafka.server.listener(listener))
    files = {"ca.pem": kafka.ca, "client.pem": kafka.certificate, "client.key": kafka.encrypted_key}
    if "client.p12" in text:
        files["client.p12"] = kafka.keystore()
    for name, path in files.items():
        text = text.replace(f"/etc/compactory/{name}", str(path))
    return text.replace("https://login.example/token", kafka.identity.url)


@pytest.mark.parametrize("block", SETTINGS, ids=range(len(SETTINGS)))
def test_settings_connect(
    block: Block, secured_kafka: SecuredKafka, tmp_path: Path, unique: Callable[[str], str]
) -> None:
    topic = secured_kafka.topic(unique("page"))
    file = tmp_path / "compactory.toml"
    file.write_text(_here(secured_kafka, block.text))
    variables = {}
    for name in re.findall(r"COMPACTORY_KAFKA_(\w+)_FILE", block.text):
        secret = tmp_path / name
        secret.write_text(SECRETS[name] + "\n")
        variables[f"COMPACTORY_KAFKA_{name}_FILE"] = str(secret)
    configuration = load_configuration(Flags(config=file), read_environment(variables))
    with GlobalStore(configuration.kafka().properties(), [topic]) as store:
        assert store[topic]["1"] == {"n": 1}


def test_every_way_is_on_the_page() -> None:
    text = "".join(block.text for block in SETTINGS)
    for word in ("ssl.certificate", "ssl.keystore", "SCRAM", "PLAIN", "oidc", "unsecure"):
        assert word in text


def test_certificates_are_made(tmp_path: Path) -> None:
    [block] = [block for block in blocks("sh") if block.page == PAGE and "openssl req" in block.text]
    subprocess.run(["bash", "-euc", block.text], cwd=tmp_path, check=True, capture_output=True)
    shown = subprocess.run(
        ["openssl", "x509", "-in", "broker.pem", "-noout", "-ext", "subjectAltName"],
        cwd=tmp_path,
        check=True,
        capture_output=True,
        text=True,
    )
    assert "DNS:kafka.example, IP Address:127.0.0.1" in shown.stdout
