"""The site is built strictly: no dead link, no page that the navigation lacks, nothing from another host."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

from tests.docs.pages import ROOT


def test_the_site_is_whole_and_asks_no_other_host(tmp_path: Path) -> None:
    environment = os.environ | {"PATH": str(tmp_path)}  # without npm: diagrams are text
    done = subprocess.run(
        [sys.executable, ROOT / "scripts" / "site.py"], env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "npm is missing" in done.stderr
    pages = list((ROOT / "build" / "site").rglob("*.html"))
    assert len(pages) > 100
    asked = re.compile(r"<(?:script|img|link)[^>]+(?:src|href)=\"?(https?://[^\s\">]+)")
    assert {address for page in pages for address in asked.findall(page.read_text())} <= {
        "https://github.com/compactory/compactory"
    }
