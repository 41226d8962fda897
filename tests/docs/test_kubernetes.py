"""The manifests of docs/kubernetes.md hang together: labels, ports, volumes, secrets, commands, probes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from compactory_api.ops.listener import _PATHS
from compactory_connectors.connect.config.config_file import parse_properties
from tests.docs.pages import ROOT, blocks, settings_problems, usage_problem

DOCUMENTS = [
    document
    for block in blocks("yaml")
    if block.page == ROOT / "docs" / "kubernetes.md"
    for document in yaml.safe_load_all(block.text)
]
DEPLOYMENTS = [document for document in DOCUMENTS if document["kind"] == "Deployment"]
BY_NAME = {(document["kind"], document["metadata"]["name"]): document for document in DOCUMENTS}


def test_what_there_is() -> None:
    assert sorted(kind for kind, _ in BY_NAME) == [
        "ConfigMap", "Deployment", "Deployment", "Deployment", "Secret", "Service"]  # fmt: skip
    assert all("apiVersion" in document for document in DOCUMENTS)


@pytest.mark.parametrize("deployment", DEPLOYMENTS, ids=lambda item: item["metadata"]["name"])
def test_a_deployment_is_complete(deployment: dict[str, Any]) -> None:
    spec = deployment["spec"]
    assert deployment["apiVersion"] == "apps/v1"
    assert spec["selector"]["matchLabels"] == spec["template"]["metadata"]["labels"]
    pod = spec["template"]["spec"]
    volumes = {volume["name"]: volume for volume in pod.get("volumes", [])}
    for container in pod["containers"]:
        check_container(container)
        assert container["securityContext"]["runAsNonRoot"] is True
        assert {mount["name"] for mount in container.get("volumeMounts", [])} == set(volumes)
    for volume in volumes.values():
        if "secret" in volume:
            assert ("Secret", volume["secret"]["secretName"]) in BY_NAME


def check_container(container: dict[str, Any]) -> None:
    assert {"name", "image", "resources"} <= container.keys()
    assert {"requests", "limits"} <= container["resources"].keys()
    if container["image"].startswith("compactory:"):  # spools and Python's tempfile need a folder that is writable
        assert container["securityContext"]["readOnlyRootFilesystem"] is True
        assert container["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
        assert "/tmp" in {mount["mountPath"] for mount in container["volumeMounts"]}
    ports = {port.get("name", port["containerPort"]) for port in container.get("ports", [])}
    for probe in ("readinessProbe", "livenessProbe"):
        if probe in container:
            assert container[probe]["httpGet"]["path"] in _PATHS
            assert container[probe]["httpGet"]["port"] in ports | {p["containerPort"] for p in container["ports"]}
    if container["image"].startswith("compactory:"):
        assert usage_problem(container["args"]) is None
    for variable in container.get("env", []):
        reference = variable.get("valueFrom", {}).get("secretKeyRef")
        if reference is not None:
            assert reference["key"] in BY_NAME["Secret", reference["name"]]["stringData"]


def test_a_source_has_a_standby_that_a_rolling_update_replaces_first() -> None:
    spec = BY_NAME["Deployment", "compactory-source"]["spec"]
    assert spec["replicas"] == 2
    assert spec["strategy"] == {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 1, "maxUnavailable": 0}}


def test_the_service_finds_its_pods() -> None:
    service, api = BY_NAME["Service", "compactory-api"]["spec"], BY_NAME["Deployment", "compactory-api"]["spec"]
    assert service["selector"] == api["selector"]["matchLabels"]
    ports = {port["name"] for port in api["template"]["spec"]["containers"][0]["ports"]}
    assert {port["targetPort"] for port in service["ports"]} <= ports


def test_the_files_in_them_are_valid(tmp_path: Path) -> None:
    path = tmp_path / "compactory.toml"
    path.write_text(BY_NAME["ConfigMap", "compactory"]["data"]["compactory.toml"])
    assert settings_problems(path) == []
    secret = parse_properties(BY_NAME["Secret", "compactory"]["stringData"]["tpp.properties"])
    article = (ROOT / "examples" / "connectors" / "terminal_acquirer.json").read_text()
    assert [key for key in secret if "${tpp:" + key + "}" not in article] == []


def test_a_stateful_set_has_its_service_and_servers_an_address_that_pods_resolve() -> None:
    documents = [
        document
        for block in blocks("yaml")
        if block.page == ROOT / "docs" / "rocksdb.md"
        for document in yaml.safe_load_all(block.text)
    ]
    by_kind = {document["kind"]: document for document in documents}
    stateful_set, service = by_kind["StatefulSet"], by_kind["Service"]
    assert service["metadata"]["name"] == stateful_set["spec"]["serviceName"]
    assert service["spec"]["clusterIP"] == "None"
    for pods in (stateful_set, BY_NAME["Deployment", "compactory-api"]):
        [container] = pods["spec"]["template"]["spec"]["containers"]
        check_container(container | {"env": []})
        assert {"name": "COMPACTORY_HTTP_ADVERTISED", "value": "http://$(POD_IP):8080"} in container["env"]
