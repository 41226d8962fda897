"""A source, for tests of transforms and converters on real servers."""

from __future__ import annotations

from tests.source.conftest import bench

__all__ = ["bench"]
