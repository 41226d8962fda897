"""Take the pictures of the console for the documentation from a demo of its own; `make screenshots` runs it."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from urllib.error import URLError
from urllib.request import urlopen

from playwright.sync_api import sync_playwright

ROOT = Path(__file__).parents[1]
SIZE = {"width": 1280, "height": 760}
WARM_UP = 45.0  # seconds until the charts have lines
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
            take(_console(Path(folder) / ".compactory" / "demo.json"))
        finally:
            demo.terminate()
            demo.wait(30)


def take(url: str) -> None:
    """Take the pictures of a console."""
    time.sleep(WARM_UP)
    with sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=shutil.which("chromium"), args=FLAGS)
        for scheme in ("light", "dark"):
            page = browser.new_page(color_scheme=scheme, viewport=SIZE)
            page.goto(url)
            page.wait_for_selector(".u-wrap")
            page.screenshot(path=ROOT / "docs" / "images" / f"console-{scheme}.png")
        browser.close()


def _console(file: Path) -> str:
    """Return the address of the demo's console once it answers."""
    while True:
        try:
            url: str = json.loads(file.read_text())["console"]
            with urlopen(url, timeout=2):  # noqa: S310 (the demo has written it)
                return url
        except (FileNotFoundError, URLError, ValueError):
            time.sleep(0.5)


if __name__ == "__main__":
    main()
