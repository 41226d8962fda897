"""Take the pictures of the console for the documentation from a demo of its own; `make screenshots` runs it."""

from __future__ import annotations

import json
import math
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from urllib.error import URLError
from urllib.request import urlopen

import psycopg
from playwright.sync_api import sync_playwright

ROOT = Path(__file__).parents[1]
SIZE = {"width": 1280, "height": 940}
WARM_UP = 60.0  # seconds until the charts have lines
FLAGS = (
    "--no-sandbox",
    "--disable-gpu",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)


def main() -> None:
    """Start the demo, wait for its console, take the overview in light and dark, and end the demo."""
    with tempfile.TemporaryDirectory() as folder:
        compactory = Path(sys.executable).with_name("compactory")
        demo = subprocess.Popen([compactory, "demo"], cwd=folder, stdout=subprocess.DEVNULL)
        try:
            state = _state(Path(folder) / ".compactory" / "demo.json")
            change(state["postgres"], state["http"])
            take(state["console"])
        finally:
            demo.terminate()
            demo.wait(30)


def change(postgres: str, http: str) -> None:
    """Change rows of the demo, insert payments and look entries up for a while, faster and slower."""
    entry = f"{http}/v1/directories/terminal_acquirer/entries/T42"
    ends = time.monotonic() + WARM_UP
    with psycopg.connect(postgres, autocommit=True) as connection:
        while (remaining := ends - time.monotonic()) > 0:
            connection.execute("UPDATE terminal_acquirer SET acquirer_id = 'A' || mod(id, 7) WHERE mod(id, 997) = 0")
            connection.execute("INSERT INTO payments (terminal_id, amount) VALUES ('T42', 19.99), ('T43', 2500)")
            with urlopen(entry, timeout=10) as answer:  # noqa: S310 (the demo has written it)
                answer.read()
            time.sleep(0.05 + 0.2 * abs(math.sin(remaining / 8)))


def take(url: str) -> None:
    """Take the pictures of a console."""
    with sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=shutil.which("chromium"), args=FLAGS)
        for scheme in ("light", "dark"):
            page = browser.new_page(color_scheme=scheme, viewport=SIZE)
            page.goto(url)
            page.wait_for_selector(".u-wrap")
            page.screenshot(path=ROOT / "docs" / "images" / f"console-{scheme}.png")
        browser.close()


def _state(file: Path) -> dict[str, str]:
    """Return the contents of demo.json once the demo's console answers."""
    while True:
        try:
            state: dict[str, str] = json.loads(file.read_text())
            with urlopen(state["console"], timeout=2):  # noqa: S310 (the demo has written it)
                return state
        except (FileNotFoundError, URLError, ValueError):
            time.sleep(0.5)


if __name__ == "__main__":
    main()
