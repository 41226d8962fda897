"""Pages from templates: numbers, times, and values of entries in forms that people read and browsers can't run."""

from __future__ import annotations

import gzip
import unicodedata
from collections.abc import Mapping
from datetime import UTC, datetime
from functools import cache
from importlib.resources import files
from typing import Any
from urllib.parse import quote, urlencode

import orjson
from jinja2 import Environment, PackageLoader
from markupsafe import Markup, escape
from starlette.requests import Request
from starlette.responses import Response

from .options import ConsoleOptions
from .sessions import Session

__all__ = ["Pages", "counted", "static_file"]

_LONGEST_TEXT = 4000  # characters of one text that a page shows
_DEPTH = 40  # levels of a tree
_LARGEST_TREE = 64 << 10  # bytes of a value that is shown as a tree
_LEAST_GZIP = 1000  # bytes
_RUNBOOKS = "https://github.com/compactory/compactory/blob/main/docs/runbooks/"
_TYPES = {
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".txt": "text/plain; charset=utf-8",
}
_BIDI = frozenset(map(chr, (0x61C, 0x200E, 0x200F, *range(0x202A, 0x202F), *range(0x2066, 0x206A))))


class Pages:
    """Renders templates. ``prefix`` is the path before all paths of the console."""

    def __init__(self, options: ConsoleOptions) -> None:
        self._options = options
        self._environment = Environment(
            loader=PackageLoader("compactory_console"),
            autoescape=True,
            trim_blocks=True,
            lstrip_blocks=True,
            finalize=_without_nul,
        )
        self._environment.filters |= {
            "ago": _ago, "moment": _moment, "number": _number, "shown": _shown, "tree": _tree, "cell": _cell,
            "counted": counted,
        }  # fmt: skip
        self._environment.globals |= {
            "url": self.url,
            "runbook": lambda name: f"{_RUNBOOKS}{name}.md",
            "asks_for_tokens": options.access.has_tokens,
        }

    def url(self, path: str, **query: Any) -> str:
        """Return the address of a page. Parameters that are None or empty are left out; lists are repeated."""
        pairs = [
            (name, item)
            for name, value in query.items()
            for item in (value if isinstance(value, list | tuple) else [value])
            if item not in (None, "")
        ]
        return f"{self._options.prefix}{quote(path)}{'?' if pairs else ''}{urlencode(pairs)}"

    def fragment(self, template: str, session: Session, **context: Any) -> str:
        """Return a part of a page."""
        return self._environment.get_template(template).render(session=session, **context)

    def page(
        self, request: Request, session: Session | None, template: str, *, code: int = 200, **context: Any
    ) -> Response:
        """Return a page, compressed if the browser takes that."""
        text = self._environment.get_template(template).render(session=session, path=request.url.path, **context)
        return _page_response(request, text.encode("utf-8", "replace"), "text/html; charset=utf-8", code)


def static_file(request: Request, name: str) -> Response | None:
    """Return a file of the console that never changes, or None."""
    packed = _static().get(name)
    if packed is None:
        return None
    response = _page_response(request, packed[1], packed[0], 200, compressed=packed[2])
    response.headers["cache-control"] = "public, max-age=86400"
    return response


@cache
def _static() -> Mapping[str, tuple[str, bytes, bytes]]:
    folder = files("compactory_console") / "static"
    contents = {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()}
    return {
        name: (_TYPES.get(name[name.rfind(".") :], "application/octet-stream"), body, gzip.compress(body, 9, mtime=0))
        for name, body in contents.items()
    }


def _page_response(request: Request, body: bytes, kind: str, code: int, *, compressed: bytes | None = None) -> Response:
    headers = {"vary": "accept-encoding"}
    if len(body) >= _LEAST_GZIP and "gzip" in request.headers.get("accept-encoding", ""):
        body = compressed or gzip.compress(body, 1, mtime=0)
        headers["content-encoding"] = "gzip"
    return Response(body, code, headers, media_type=kind)


def _without_nul(value: Any) -> Any:
    """Return a text without NUL, which HTML can't have."""
    return value.replace("\0", "\u2400") if isinstance(value, str) and "\0" in value else value


def _number(value: float | None) -> str:
    """Return a number with its thousands apart."""
    if value is None:
        return "–"
    return f"{value:,.0f}" if value == int(value) else f"{value:,.1f}"


def counted(count: int, noun: str) -> str:
    """Return a number with its noun."""
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def _ago(seconds: float | None) -> str:
    """Return a duration in the unit that fits."""
    if seconds is None:
        return "–"
    for size, unit in ((86400, "d"), (3600, "h"), (60, "min")):
        if seconds >= 2 * size:
            return f"{seconds / size:,.0f} {unit}"
    return f"{max(0.0, seconds):,.1f} s"


def _moment(value: datetime | float | None) -> Markup:
    """Return a time in UTC; the script adds the browser's local time as a title."""
    if value is None:
        return Markup("–")
    time_ = value.astimezone(UTC) if isinstance(value, datetime) else datetime.fromtimestamp(value, UTC)
    text = time_.strftime("%Y-%m-%d %H:%M:%S UTC")
    return Markup('<time datetime="{}">{}</time>').format(time_.isoformat(), text)


def _shown(value: Any) -> Markup:
    """Return a text on a line of its own direction, with characters that can't be seen as symbols."""
    if value is None:
        return Markup('<span class="none">none</span>')
    text = value.decode("utf-8", "backslashreplace") if isinstance(value, bytes) else str(value)
    hidden_count = len(text) - _LONGEST_TEXT
    visible = text[:_LONGEST_TEXT]
    if not visible.isprintable():
        visible = "".join(map(_visible, visible))
    end = f" … and {hidden_count:,} more characters" if hidden_count > 0 else ""
    return Markup(f"<bdi>{escape(visible)}</bdi>{end}")  # noqa: S704 (both are escaped; `format` takes thrice the time)


def _visible(character: str) -> str:
    code = ord(character)
    if character in "\n\t":
        return character
    if code < 0x20:
        return chr(0x2400 + code)
    if character in _BIDI or unicodedata.category(character) in {"Cc", "Cs", "Co", "Cn"}:
        return f"\\u{code:04x}"
    return character


def _cell(value: Any) -> Markup:
    """Return a value in a cell of a table: a text as it is, another one as JSON."""
    if isinstance(value, str):
        return _shown(value if len(value) <= 200 else f"{value[:200]}…")
    text = orjson.dumps(value).decode()
    return _shown(text if len(text) <= 200 else f"{text[:200]}…")


def _tree(value: Any) -> Markup:
    """Return JSON as nested lists that open and close; a large value as text."""
    raw = orjson.dumps(value)
    if len(raw) > _LARGEST_TREE:
        return Markup("<p>{} bytes; the beginning:</p><pre>{}</pre>").format(f"{len(raw):,}", _shown(raw.decode()))
    return _node(value, _DEPTH)


def _node(value: Any, depth: int) -> Markup:
    """Return a part of a tree that has at most ``depth`` levels; what is deeper is text."""
    if isinstance(value, dict) and value and depth:
        lines = Markup("").join(
            Markup("<li><b>{}</b>: {}</li>").format(_shown(name), _node(item, depth - 1))
            for name, item in value.items()
        )
        return Markup('<details open><summary>{}</summary><ul class="tree">{}</ul></details>').format(
            counted(len(value), "field"), lines
        )
    if isinstance(value, list) and value and depth:
        lines = Markup("").join(Markup("<li>{}</li>").format(_node(item, depth - 1)) for item in value)
        return Markup('<details open><summary>{}</summary><ol class="tree">{}</ol></details>').format(
            counted(len(value), "item"), lines
        )
    if isinstance(value, str):
        return Markup('<span class="text">{}</span>').format(_shown(value))
    return Markup('<span class="scalar">{}</span>').format(_shown(orjson.dumps(value).decode()))
