"""A visitor of the console with Chromium."""

from __future__ import annotations

import shutil
from typing import Any

__all__ = ["CHROMIUM", "FLAGS", "Visitor"]

CHROMIUM = shutil.which("chromium")
FLAGS = [
    "--no-sandbox", "--disable-gpu", "--disable-background-networking", "--disable-component-update", "--disable-sync"
]  # fmt: skip


class Visitor:
    """A page of a browser that has signed in, with what the browser's console said and the hosts it asked."""

    def __init__(self, browser: Any, url: str, **options: Any) -> None:
        self.context = browser.new_context(base_url=url, **options)
        self.page = self.context.new_page()
        self.messages: list[str] = []
        self.hosts: set[str] = set()
        self.page.on("console", self._note)
        self.page.on("pageerror", lambda error: self.messages.append(f"error: {error}"))
        self.page.on("request", lambda request: self.hosts.add(request.url.split("/")[2]))
        self.page.goto("/")
        self.page.fill("input[name=token]", "admin")
        self.page.click("main button")
        self.page.wait_for_selector("text=Overview")

    def _note(self, message: Any) -> None:
        if message.type in ("error", "warning"):
            self.messages.append(f"{message.type}: {message.text}")
