"""Single message transforms and predicates by their Java class names, and the reading of their settings.

A class here stands for the Java class of its name; ``REGISTRY`` is the list.
"""

from __future__ import annotations

from .function import SourceRecord
from .registry import PREDICATES, REGISTRY, TransformSpec, read_transforms
from .transform import TransformError

__all__ = ["PREDICATES", "REGISTRY", "SourceRecord", "TransformError", "TransformSpec", "read_transforms"]
