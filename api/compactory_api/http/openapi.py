"""The OpenAPI document: FastAPI's, with the problems, headers and bodies that routes read and write themselves."""

from __future__ import annotations

from typing import Any

from fastapi import FastAPI
from pydantic import BaseModel

from .freshness import LONGEST_WAIT
from .models import BatchQuestion, DirectoryChange, Problem, RecordIds, WriteAnswer, WriteBatch, WriteLine
from .problem import MEDIA_TYPE, PROBLEMS

__all__ = ["FRESHNESS_HEADERS", "KEY", "OPEN", "openapi_document", "parameter", "problems", "reference_to", "text"]

OPEN: dict[str, Any] = {"security": []}  # for routes that take no token


def text(description: str) -> dict[str, Any]:
    """Return a header of an answer, or a parameter without its name and place."""
    return {"description": description, "schema": {"type": "string"}}


def parameter(name: str, description: str, where: str = "header", **fields: Any) -> dict[str, Any]:
    """Return a parameter that is text."""
    return {"name": name, "in": where, **text(description), **fields}


_COMPONENTS = "#/components/schemas/{model}"
# The models that `reference_to` names.
_REFERENCED = (Problem, WriteBatch, BatchQuestion, DirectoryChange, RecordIds, WriteAnswer, WriteLine)
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

KEY = parameter(
    "key",
    "Percent-encoded once; it may be empty and may hold slashes. Clients that resolve . and .. in"
    " paths can't send keys that look like that: batchGet and bulkWrite take them",
    where="path",
    required=True,
)


def problems(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """Return the problems that a route may answer, in FastAPI's form."""
    return {status: _problem_answer(status) for status in statuses}


def reference_to(model: type[BaseModel]) -> dict[str, Any]:
    """Return the schema of a body that a route reads or writes without FastAPI."""
    return {"$ref": _COMPONENTS.format(model=model.__name__)}


def openapi_document(app: FastAPI) -> dict[str, Any]:
    """Return the application's document. It is made once."""
    if app.openapi_schema is None:
        _adapt(FastAPI.openapi(app))
    assert app.openapi_schema is not None
    return app.openapi_schema


def _adapt(document: dict[str, Any]) -> None:
    """Add components and security. Remove FastAPI's own answer 422: bad parameters get 400, as any bad input."""
    for path in document["paths"].values():
        for operation in path.values():
            if "HTTPValidationError" in str(operation["responses"].get("422")):
                del operation["responses"]["422"]
    schemas = document["components"]["schemas"]
    for unused in ("HTTPValidationError", "ValidationError"):
        schemas.pop(unused, None)
    for model in _REFERENCED:
        schema = model.model_json_schema(ref_template=_COMPONENTS)
        schemas |= {**schema.pop("$defs", {}), model.__name__: schema}
    document["components"]["securitySchemes"] = {"token": {"type": "http", "scheme": "bearer"}}
    document["security"] = [{"token": []}, {}]


def _problem_answer(status: int) -> dict[str, Any]:
    titles = dict.fromkeys(kind.title for kind in PROBLEMS if kind.status == status)
    answer = {"description": "; ".join(titles), "content": {MEDIA_TYPE: {"schema": reference_to(Problem)}}}
    return answer | ({"headers": _PROBLEM_HEADERS[status]} if status in _PROBLEM_HEADERS else {})
