"""Probes, status, directories, metrics, the OpenAPI document."""

from __future__ import annotations

import json
import re
from collections.abc import Callable

import pytest
from prometheus_client.parser import text_string_to_metric_families

from compactory import ConfigError, Directory, GlobalStore, Index, StartTimeout
from compactory_api.app import create_app
from compactory_api.http.problem import PROBLEMS, problem
from tests.api.serving import Serving
from tests.store.topics import Topics, eventually

Serve = Callable[..., Serving]


def samples(text: str) -> dict[tuple[str, frozenset[tuple[str, str]]], float]:
    families = text_string_to_metric_families(text)
    return {(item.name, frozenset(item.labels.items())): item.value for family in families for item in family.samples}


def test_guarantee_1_readiness_names_what_blocks_it_and_then_turns(serve: Serve, topics: Topics) -> None:
    topic = topics.create()
    topics.produce(topic, ("a", "{}"))
    with topics.transaction() as producer:
        producer.produce(topic, "{}", "b")
        producer.flush(10)
        serving = serve(topic, ready=False)
        assert serving.ask("/livez").json == {"live": True}
        blocked = {"topic": topic, "partition": 0, "position": 1, "target": 2}
        eventually(lambda: serving.ask("/readyz").json["blocking"] == [blocked])
        loading = serving.ask("/readyz")
        assert (loading.status, loading.json["ready"]) == (503, False)
        [directory] = serving.ask("/v1/directories").json["directories"]
        assert (directory["state"], directory["entries"], directory["partitions"]) == ("loading", None, 1)
        for path in ("entries/a", "entries/zz", "entries", "entries?prefix=a"):
            refused = serving.ask(f"/v1/directories/{topic}/{path}")
            assert (refused.status, refused.problem, refused.headers["retry-after"]) == (503, "not-ready", "1"), path
        assert serving.batch(topic, {"keys": []}).problem == "not-ready"
        assert ("compactory_store_ready", frozenset()) in samples(serving.ask("/metrics").body.decode())
        producer.commit_transaction(10)
    serving.wait_ready()
    assert (serving.ask("/readyz").status, serving.ask("/readyz").json) == (200, {"ready": True, "blocking": []})
    assert serving.ask("/readyz", "HEAD").body == b""
    assert serving.entry(topic, "b").status == 200


def test_directories_and_status_say_how_things_are(serve: Serve, topics: Topics) -> None:
    first_topic, second_topic = topics.create(), topics.create(partitions=3)
    topics.produce(first_topic, *((str(n), "{}") for n in range(5)), ("0", None), ("bad", "no"))
    topics.produce(second_topic, ("a", "{}"), partition=2)
    serving = serve(Directory("d", topic=first_topic, indexes=[Index("x")]), second_topic)
    first, second = serving.ask("/v1/directories").json["directories"]
    assert serving.ask("/v1/directories/d").json.keys() == first.keys()
    missing = serving.ask("/v1/directories/none")
    assert (missing.status, missing.problem) == (404, "unknown-directory")
    assert f"there are: d, {second_topic}" in missing.json["detail"]
    assert 0 <= first.pop("age_seconds") < 10
    assert first.pop("stale") is None
    assert first == {"name": "d", "topic": first_topic, "state": "ready", "entries": 4, "lag": 0, "partitions": 1} | {
        "bad_records": 1,
        "unusable": None,
        "key": None,
    }
    assert (second["name"], second["entries"], second["partitions"]) == (second_topic, 1, 3)
    status = serving.ask("/v1/status").json
    assert (status["live"], status["ready"]) == (True, True)
    [worker] = status["workers"]
    assert (worker["name"], worker["state"], worker["bad_records"]) == ("store", "ready", 1)
    assert worker["load_seconds"] > 0
    places = {(part["topic"], part["partition"]): part for part in worker["partitions"]}
    assert places[first_topic, 0]["position"] == places[first_topic, 0]["high_watermark"] == 7
    assert places[first_topic, 0]["topic_id"] == serving.store.topics()[first_topic].topic_id
    assert len(places) == 4


def test_the_age_grows_while_something_is_held_back(serve: Serve, topics: Topics) -> None:
    topic = topics.create()
    serving = serve(topic)

    def age() -> float:
        return float(serving.ask("/v1/directories").json["directories"][0]["age_seconds"])

    assert age() < 10
    with topics.transaction() as producer:
        producer.produce(topic, "{}", "b")
        producer.flush(10)
        eventually(lambda: age() > 4.5)
        assert serving.ask("/v1/directories").json["directories"][0]["lag"] == 1
        assert serving.ask("/readyz").status == 200
        producer.commit_transaction(10)
    eventually(lambda: age() < 3)


def test_metrics_have_the_promised_names_and_the_right_figures(serve: Serve, topics: Topics) -> None:
    topic = topics.create(partitions=2)
    topics.produce(topic, *((str(n), "{}") for n in range(5)), partition=0)
    topics.produce(topic, ("x", "{}"), ("y", "no"), partition=1)
    serving = serve(topic)
    for path in ("0", "0", "nope"):
        serving.entry(topic, path)
    serving.ask(f"/v1/directories/{topic}/entries")
    serving.ask("/somewhere")
    answer = serving.ask("/metrics")
    assert answer.headers["content-type"].startswith("text/plain; version=")
    values = samples(answer.body.decode())

    def at(name: str, **labels: str) -> float:
        return values[name, frozenset(labels.items())]

    for partition, position, entries in (("0", 5, 5), ("1", 2, 1)):
        place = {"topic": topic, "partition": partition}
        assert at("compactory_store_position", **place) == position
        assert at("compactory_store_high_watermark", **place) == position
        assert at("compactory_store_lag", **place) == 0
        assert at("compactory_store_entries", **place) == entries
    assert at("compactory_store_errors_total") == 1
    assert at("compactory_store_ready") == 1
    assert at("compactory_store_start_seconds") > 0
    assert 0 <= at("compactory_store_data_age_seconds") < 10
    lookup = "/v1/directories/{directory}/entries/{key}"
    assert at("compactory_http_request_seconds_count", route=lookup, status="200") == 2
    assert at("compactory_http_request_seconds_count", route=lookup, status="404") == 1
    assert at("compactory_http_request_seconds_bucket", route=lookup, status="200", le="+Inf") == 2
    assert at("compactory_http_request_seconds_sum", route=lookup, status="200") > 0
    listing = "/v1/directories/{directory}/entries"
    assert at("compactory_http_request_seconds_count", route=listing, status="200") == 1
    assert at("compactory_http_request_seconds_count", route="none", status="404") == 1
    openmetrics = serving.ask("/metrics", headers={"Accept": "application/openmetrics-text; version=1.0.0"})
    assert openmetrics.headers["content-type"].startswith("application/openmetrics-text")
    assert openmetrics.body.endswith(b"# EOF\n")


def test_the_openapi_document_has_every_route_and_no_page_loads_from_elsewhere(serve: Serve, topics: Topics) -> None:
    serving = serve(topics.create())
    document = serving.ask("/openapi.json").json
    lookup = document["paths"]["/v1/directories/{directory}/entries/{key}"]
    assert set(lookup) == {"get", "head", "put", "patch", "delete"}
    assert {"200", "304", "400", "401", "403", "404", "412", "421", "502", "503"} == set(lookup["get"]["responses"])
    assert {parameter["name"] for parameter in lookup["get"]["parameters"]} == {
        "directory", "key", "If-None-Match", "Cache-Control", "Compactory-Min-Offset", "Prefer",
    }  # fmt: skip
    for path in ("/livez", "/readyz", "/metrics", "/v1/status", "/v1/errors", "/v1/directories"):
        assert path in document["paths"]
    assert "HTTPValidationError" not in str(document)  # bad parameters are 400
    assert "ValidationError" not in document["components"]["schemas"]
    for path in ("/docs", "/redoc"):
        assert serving.ask(path).status == 404


def test_generated_clients_find_wide_numbers_named_bodies_headers_and_refusals_in_the_openapi_document() -> None:
    document = create_app(GlobalStore("localhost:9092", ["terminals"])).routes.openapi()
    assert document["info"]["license"]["identifier"] == "Apache-2.0"
    schemas = document["components"]["schemas"]
    narrow = [  # Java and Go read an integer without a format as 32 bits: a time in milliseconds has 41
        f"{name}.{field}"
        for name, schema in schemas.items()
        for field, field_schema in schema["properties"].items()
        if field in ("offset", "timestamp_ms", "position", "high_watermark", "lag", "positions")
        and "64" not in str(field_schema)
    ]
    assert sorted(narrow) == ["WriteAnswer.offset", "WriteBatchResult.offset"], "these are texts"
    references = set(re.findall(r"#/components/schemas/(\w+)", json.dumps(document)))
    assert references == set(schemas)
    operations = {
        operation["operationId"]: operation for path in document["paths"].values() for operation in path.values()
    }
    assert {"get_liveness", "get_readiness", "get_metrics"} < operations.keys()
    bodies = {"batch_get_entries": "BatchQuestion", "bulk_write_entries": "WriteLine", "skip_errors": "RecordIds"}
    for name, model in bodies.items():
        [content] = operations[name]["requestBody"]["content"].values()
        assert content["schema"] == {"$ref": f"#/components/schemas/{model}"}
    headers = {"ETag", "Compactory-Offset", "Location", "Compactory-Status", "Compactory-Outcome"}
    assert set(operations["post_entry"]["responses"]["201"]["headers"]) == headers
    assert set(operations["get_entry"]["responses"]["503"]["headers"]) == {"Retry-After"}
    ruled = [operation for path, operation in document["paths"].items() if "{directory}" in path]
    assert all("403" in operation["responses"] for path in ruled for operation in path.values())


def test_every_problem_is_told_apart_and_nothing_unexpected_leaks() -> None:
    names = [kind.name for kind in PROBLEMS]
    twice = [name for name in set(names) if names.count(name) > 1]
    assert sorted(twice) == ["bad-request", "no-entry"], "only these stand for two classes each"
    assert problem(StartTimeout("x")).status == 500
    secret = problem(RuntimeError("postgresql://u:secret@h"))
    assert secret.status == 500
    assert b"secret" not in secret.body


@pytest.mark.parametrize("wrong", ["nope", "also nope"])
def test_a_store_that_can_not_start_ends_the_server_with_its_error(kafka: str, wrong: str) -> None:
    from compactory_api.http.access import Access

    serving = Serving(GlobalStore(kafka, [wrong.replace(" ", "-")]), Access())
    eventually(lambda: serving.ended)
    assert isinstance(serving.failure, ConfigError)
    assert "does not exist" in str(serving.failure)
