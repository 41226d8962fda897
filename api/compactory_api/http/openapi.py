"""The OpenAPI document: FastAPI's own routes, and the lookup by hand, because FastAPI does not route it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi
from pydantic import BaseModel

from .document import BatchQuestion, DirectoryChange, Problem, RecordPlaces, WriteAnswer, WriteLine
from .freshness import LONGEST_WAIT
from .problem import MEDIA_TYPE, PROBLEMS

__all__ = ["FRESHNESS_HEADERS", "KEY", "OPEN", "document", "parameter", "problems", "reference_to", "text"]

OPEN: dict[str, Any] = {"security": []}  # for routes that take no token


def text(description: str) -> dict[str, Any]:
    """Return a header of an answer, or a parameter without its name and place."""
    return {"description": description, "schema": {"type": "string"}}


def parameter(name: str, description: str, where: str = "header", **more: Any) -> dict[str, Any]:
    """Return a parameter that is text."""
    return {"name": name, "in": where, **text(description), **more}


_COMPONENTS = "#/components/schemas/{model}"
_BY_HAND = (Problem, BatchQuestion, DirectoryChange, RecordPlaces, WriteAnswer, WriteLine)  # FastAPI doesn't see these
_PROBLEM_HEADERS: dict[int, dict[str, Any]] = {
    401: {"WWW-Authenticate": text("Bearer")},
    405: {"Allow": text("The methods that are possible")},
    503: {"Retry-After": text("Seconds until another try makes sense")},
}

FRESHNESS_HEADERS: list[dict[str, Any]] = [
    parameter(
        "Compactory-Min-Offset",
        "Answer only once these records are visible: topic:partition:offset, several with commas."
        " A write's answer carries it as Compactory-Offset",
        example="terminal_acquirer:0:42",
    ),
    parameter(
        "Prefer",
        f"wait=SECONDS: how long to wait for them; 1 by default, {LONGEST_WAIT:g} at most (RFC 7240)",
        example="wait=5",
    ),
]

_MAX_AGE = parameter(
    "Cache-Control",
    "max-age=SECONDS: the data must have been known to be complete so long ago at most, else 503 of kind"
    " stale where the directory says on_stale=raise; 0 counts as 1 (RFC 9111)",
    example="max-age=60",
)

KEY = parameter(
    "key",
    "Percent-encoded once; it may be empty and may hold slashes. Clients that resolve . and .. in"
    " paths can't send keys that look like that: batchGet and bulkWrite take them",
    where="path",
    required=True,
)
_PATH_PARAMETERS: list[dict[str, Any]] = [
    {"name": "directory", "in": "path", "required": True, "schema": {"type": "string", "minLength": 1}},
    KEY,
]

_LOOKUP_HEADERS: dict[str, Any] = {
    "ETag": text('"topic id-partition-offset"'),
    "Compactory-Offset": text("topic:partition:offset of the record"),
}


def problems(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """Return the problems that a route may answer, in FastAPI's form."""
    return {status: _problem(status) for status in statuses}


def reference_to(model: type[BaseModel]) -> dict[str, Any]:
    """Return the schema of a body that no route of FastAPI declares: one of the document's components."""
    return {"$ref": _COMPONENTS.format(model=model.__name__)}


def document(app: FastAPI) -> Callable[[], dict[str, Any]]:
    """Return the function that makes the application's document, once."""

    def openapi() -> dict[str, Any]:
        if app.openapi_schema is None:
            app.openapi_schema = _made(app)
        return app.openapi_schema

    return openapi


def _made(app: FastAPI) -> dict[str, Any]:
    about = {name: getattr(app, name) for name in ("title", "version", "description", "license_info")}
    made = get_openapi(**about, routes=app.routes)
    for path in made["paths"].values():
        for operation in path.values():
            if "HTTPValidationError" in str(operation.get("responses", {}).get("422")):
                del operation["responses"]["422"]  # bad parameters are 400 here, as any bad input
    entry = made["paths"].setdefault("/v1/directories/{directory}/entries/{key}", {})
    entry |= {"get": _lookup(), "head": _lookup(head=True)}
    schemas = made.setdefault("components", {}).setdefault("schemas", {})
    for unused in ("HTTPValidationError", "ValidationError"):
        schemas.pop(unused, None)
    for model in _BY_HAND:
        schema = model.model_json_schema(ref_template=_COMPONENTS)
        schemas |= {**schema.pop("$defs", {}), model.__name__: schema}
    made["components"]["securitySchemes"] = {"token": {"type": "http", "scheme": "bearer"}}
    made["security"] = [{"token": []}, {}]
    return made


def _problem(status: int) -> dict[str, Any]:
    titles = dict.fromkeys(kind.title for kind in PROBLEMS if kind.status == status)
    answer = {"description": "; ".join(titles), "content": {MEDIA_TYPE: {"schema": reference_to(Problem)}}}
    return answer | ({"headers": _PROBLEM_HEADERS[status]} if status in _PROBLEM_HEADERS else {})


def _lookup(*, head: bool = False) -> dict[str, Any]:
    told = "An ETag of this entry: the answer is its value of then, as long as the log has it"
    version, condition = parameter("version", told, where="query"), parameter("If-None-Match", "An ETag")
    found: dict[str, Any] = {"description": "The value, as it is in the topic", "headers": _LOOKUP_HEADERS}
    if not head:
        found["content"] = {
            "application/json": {"schema": {}},
            "text/plain": {"schema": {"type": "string"}},
            "application/octet-stream": {"schema": {"type": "string", "format": "binary"}},
        }
    refusals = {str(status): _problem(status) for status in (400, 401, 403, 404, 410, 412, 421, 502, 503)}
    if head:
        refusals = {status: {"description": answer["description"]} for status, answer in refusals.items()}
    return {
        "tags": ["entries"],
        "operationId": "head_entry" if head else "get_entry",
        "summary": "Look one key up",
        "parameters": [*_PATH_PARAMETERS, version, condition, _MAX_AGE, *FRESHNESS_HEADERS],
        "responses": {
            "200": found,
            "304": {"description": "The client has this very record", "headers": _LOOKUP_HEADERS},
            **refusals,
        },
    }
