"""A request to the console, with what its handler needs."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import Any

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from compactory.errors import ConfigError

from .parts import Parts
from .processes import Process, directory_path
from .sessions import Session

__all__ = ["Call"]

_audit = logging.getLogger("compactory.console.audit")


@dataclass(frozen=True, slots=True)
class Call:
    """A request, its session, and the fields of its form."""

    parts: Parts
    request: Request
    session: Session
    form: dict[str, list[str]]

    @property
    def by(self) -> str:
        """Return the name of the visitor for the operator log."""
        return f"console: {self.session.grant.name}"

    def query(self, name: str) -> str | None:
        """Return a parameter of the address; None where it is missing or empty."""
        return self.request.query_params.get(name) or None

    def field(self, name: str) -> str | None:
        """Return a field of the form; None where it is missing or empty."""
        return self.form.get(name, [""])[0] or None

    def number(self, name: str) -> int | None:
        """Return a parameter of the address as a number. Raises ConfigError."""
        return whole_number(name, self.query(name))

    def ids(self) -> list[int]:
        """Return the ids of the form. Raises ConfigError."""
        return [number for text in self.form.get("id", []) if (number := whole_number("id", text)) is not None]

    def server(self) -> Process:
        """Return the process of the path."""
        return self.parts.servers.at(self.request.path_params["server"])

    def directory(self) -> tuple[Process, str, str]:
        """Return process, name and API path of the directory of the path. Raises Forbidden if it may not be read."""
        name = self.request.path_params["directory"]
        self.session.demand_read(name)
        return self.server(), name, directory_path(name)

    def page(self, template: str, **context: Any) -> Response:
        """Return a page. A part of one leaves the message of an act to the next page."""
        message = None if "hx-request" in self.request.headers else self.session.take_message()
        return self.parts.pages.page(
            self.request,
            self.session,
            template,
            **{"servers": self.parts.servers.processes, "done": message, **context},
        )

    def back(self, path: str, message: str, **query: Any) -> Response:
        """Return to a page after an act, with a message of what was done, and note the act in the log."""
        _audit.info("%s by %s: %s", self.request.url.path, self.session.grant.name, message)
        self.session.messages.append(message)
        return RedirectResponse(self.parts.pages.url(path, **query), 303)


def whole_number(name: str, text: str | None) -> int | None:
    """Return a text as a number. Raises ConfigError."""
    if text is None:
        return None
    if not text.isascii() or not text.isdigit() or len(text) > 18:
        raise ConfigError(f"{name} must be a whole number, not {text[:40]!r}")
    return int(text)
