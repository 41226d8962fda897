"""The process from which Spark forks its Python workers on this machine; they find no pandas.

PyArrow imports pandas for the first value of Python that it converts: a second of work in each worker, and no task of
ours needs it. Spark runs this module in place of ``pyspark.daemon``.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from importlib.abc import MetaPathFinder
from typing import Any

from pyspark.daemon import manager

__all__ = ["unchanged"]


class _WithoutPandas(MetaPathFinder):
    def find_spec(self, fullname: str, path: Any, target: Any = None) -> None:  # noqa: ARG002  # importlib passes all
        """Find nothing, and let no finder after this one find pandas."""
        if fullname == "pandas":
            raise ModuleNotFoundError(fullname, name=fullname)


def unchanged(batches: Iterator[Any]) -> Iterator[Any]:
    """Give what comes; a task that only has a worker start."""
    return batches


if __name__ == "__main__":
    sys.meta_path.insert(0, _WithoutPandas())
    manager()
