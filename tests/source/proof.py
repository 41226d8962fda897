"""How long the long proofs of this folder take: ``make proof PROOF_SECONDS=600`` for ten minutes each."""

from __future__ import annotations

import os

import pytest

__all__ = ["LONG", "PROOF", "SECONDS"]

SECONDS = float(os.environ.get("PROOF_SECONDS") or 60)

PROOF = [pytest.mark.proof, pytest.mark.timeout(SECONDS + 300)]

LONG = pytest.param(SECONDS, marks=PROOF, id="long")
"""The value of a parameter ``seconds``."""
