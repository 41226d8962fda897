"""The HTTP API, from the OpenAPI document of the application."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from compactory import GlobalStore
from compactory_api.app import create_app
from compactory_api.http.problem import PROBLEMS

from .markdown import cell, code, page, table

__all__ = ["page_text"]

_INTRO = """\
This page lists the routes of `compactory serve`. The machine-readable form is at `/openapi.json` of a running server.
JSON is snake_case; every error is a problem document (`application/problem+json`, RFC 9457). Keys in paths are
percent-encoded once. `/livez`, `/readyz` and `/metrics` take no token.

Clients generated from the document can call every route but three: `bulkWrite`, `watch` and `digest/{ranges}` carry
many lines or events, and the document has the schema of one. Send and read those with a plain HTTP client. The server
is the one that the document came from."""

_AUTH = """\
With `COMPACTORY_HTTP_READ_TOKEN`, `COMPACTORY_HTTP_WRITE_TOKEN` or `COMPACTORY_HTTP_ADMIN_TOKEN` set,
requests carry `Authorization: Bearer TOKEN`.
The write token also writes [directories mastered in Kafka](../writes.md).
A client may have a token of its own, with [a scope on each directory](../security.md#http).
The admin token also shows the bytes of bad records. Without a token the server listens on a loopback
address only and answers only requests whose `Host` is a loopback name; `--no-auth` lifts both."""

_PROXIES = """\
- **Paths** must arrive as the client sent them. In nginx write `proxy_pass http://api;` without a path behind it: with
  one, nginx decodes keys and merges slashes: the lookup of `a%2F%2Fb` finds the entry `a/b`. nginx refuses `%00`.
- **A prefix** of the proxy's own is not known here: `Location` and `Compactory-Status` are paths from `/v1` on.
- **Names**: without a token the server answers to loopback names only (421). Give it tokens, or `--no-auth`.
- **Events** pass nginx, HAProxy and Caddy at once, without a setting. A heartbeat comes every 15 seconds, so a
  timeout of 60 seconds is enough for `watch`. A write with `Prefer: wait=30` needs more than 30.
- **Health**: ask `/readyz`. With `--drain` it turns 503 first, and each answer from then on closes its connection.
- **Addresses** in the audit log are those of `X-Forwarded-For` if the proxy runs on this machine. Set
  `FORWARDED_ALLOW_IPS` to the addresses of others. A write that another server forwards shows that server's address.
- **Browsers** refuse answers to pages of another origin, as there are no CORS headers. The proxy may add them."""

_SOURCES = """\
`compactory source run --listen HOST:PORT` answers `/livez`, `/readyz`, `/metrics` and `/v1/status`, and takes commands;
they are named as in Kafka Connect. Commands need the admin token; without an admin token they are closed. The answer
is 202 and the connector's status, before the command is carried out. A standby and a source that has ended answer 409
(`refused`). [Operations](../operations.md#states-of-a-source) explains each command."""

_SOURCE_ROUTES = (
    ("GET /v1/connectors", "The connectors of this process"),
    ("GET /v1/connectors/{connector}/status", "The state of one connector, as in `/v1/status`"),
    (
        "PUT /v1/connectors/{connector}/pause",
        "Publish nothing until it is resumed, also after a restart of the process",
    ),
    ("PUT /v1/connectors/{connector}/resume", "Go on"),
    ("POST /v1/connectors/{connector}/restart", "A new session at once: failures are forgotten, offsets are not"),
    ("POST /v1/connectors/{connector}/tables/{table}/restart", "The same for one table, also one that was given up"),
    (
        "POST /v1/connectors/{connector}/tables/{table}/approve",
        'Do the held removal or change: `{"removal": "ID"}` of the status',
    ),
    (
        "POST /v1/connectors/{connector}/tables/{table}/resend",
        'Send rows again by their record keys, at most 10,000: `{"keys_base64": ["…"]}`',
    ),
)

_ORDER = ("/v1/", "/livez", "/readyz", "/metrics")


def page_text() -> str:
    """The page."""
    document = create_app(GlobalStore("localhost:9092", ["terminal_acquirer"])).routes.openapi()
    found = [(path, method, each) for path, methods in document["paths"].items() for method, each in methods.items()]
    found.sort(key=lambda item: (_place(item[0]), item[0], item[1]))
    routes = ([code(f"{method.upper()} {path}"), cell(each["summary"])] for path, method, each in found)
    errors = ([str(kind.status), code(f"urn:compactory:problem:{kind.name}"), cell(kind.title)] for kind in _problems())
    sections = [_section(path, method, each, document) for path, method, each in found if method != "head"]
    parts = ["## Routes", table(["route", "answer"], routes), "## Who may ask", _AUTH]
    parts += ["## Behind a proxy", _PROXIES]
    parts += ["## Sources", _SOURCES, table(["route", "effect"], ([code(a), b] for a, b in _SOURCE_ROUTES))]
    parts += ["## Problems", table(["status", "type", "title"], errors), *sections]
    return page("HTTP API", "the OpenAPI document of `api/`", _INTRO, *parts)


def _problems() -> Iterator[Any]:
    seen: set[str] = set()
    for kind in PROBLEMS:
        if kind.name not in seen:
            seen.add(kind.name)
            yield kind


def _place(path: str) -> int:
    return next((number for number, start in enumerate(_ORDER) if path.startswith(start)), len(_ORDER))


def _section(path: str, method: str, operation: dict[str, Any], document: dict[str, Any]) -> str:
    parts = [f"## {method.upper()} {path}", operation["summary"] + "."]
    parameters = operation.get("parameters", [])
    if parameters:
        rows = ([code(p["name"]), p["in"], cell(p.get("description", "")), _schema(p["schema"])] for p in parameters)
        parts.append(table(["parameter", "in", "meaning", "value"], rows))
    if "requestBody" in operation:
        [media, *_] = contents = operation["requestBody"]["content"]
        fields = _fields(_resolved(contents[media]["schema"], document), document)
        parts += ["Body:", fields] if fields else [f"Body: {' or '.join(map(code, contents))}."]
    answers = ([status, cell(each.get("description", ""))] for status, each in sorted(operation["responses"].items()))
    parts.append(table(["status", "meaning"], answers))
    fields = _fields(_answer(operation, document), document)
    parts += ["The document of 200:", fields] if fields else []
    return "\n\n".join(parts)


def _answer(operation: dict[str, Any], document: dict[str, Any]) -> dict[str, Any]:
    content = operation["responses"].get("200", {}).get("content", {}).get("application/json", {})
    return _resolved(content.get("schema", {}), document)


def _resolved(schema: dict[str, Any], document: dict[str, Any]) -> dict[str, Any]:
    if "$ref" not in schema:
        return schema
    found: dict[str, Any] = document["components"]["schemas"][schema["$ref"].rsplit("/", 1)[1]]
    return found


def _fields(schema: dict[str, Any], document: dict[str, Any] | None = None, prefix: str = "") -> str:
    rows = list(_rows(schema, document or {}, prefix))
    return table(["field", "type", "meaning"], rows) if rows else ""


def _rows(schema: dict[str, Any], document: dict[str, Any], prefix: str) -> Iterator[list[str]]:
    for name, each in schema.get("properties", {}).items():
        yield [code(prefix + name), _schema(each), cell(each.get("description", ""))]
        inner = each.get("items", {})
        if "$ref" in inner:
            yield from _rows(_resolved(inner, document), document, f"{prefix}{name}[].")


def _schema(schema: dict[str, Any]) -> str:
    options = [each for each in schema.get("anyOf", []) if each.get("type") != "null"]
    if options:
        return _schema(options[0]) + (" or null" if len(options) < len(schema["anyOf"]) else "")
    kind = schema.get("type", "any")
    if kind == "array":
        kind = f"array of {_schema(schema['items'])}" if "$ref" not in schema["items"] else "array of objects"
    bounds = [f"{word} {schema[key]}" for key, word in (("minimum", "from"), ("maximum", "to")) if key in schema]
    default = f", default {schema['default']}" if schema.get("default") not in (None, "") else ""
    return f"{kind} {' '.join(bounds)}".strip() + default
