"""Single message transforms and predicates by their Java class names, and the reading of their settings.

A module per transform. What a class is called and which options it has stands in the class itself; ``REGISTRY`` is the
list, from which documentation is generated too.
"""

from __future__ import annotations

from .function import SourceRecord
from .reading import TransformSpec, read_transforms
from .registry import PREDICATES, REGISTRY
from .transform import TransformError

__all__ = ["PREDICATES", "REGISTRY", "SourceRecord", "TransformError", "TransformSpec", "read_transforms"]
