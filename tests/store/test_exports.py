"""The public surface, and what importing it must not cost."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator, Mapping
from types import FunctionType
from typing import Any, get_args, get_type_hints

import pytest

import compactory
from compactory import errors

SEAMS = ("Backend", "Memory", "RocksDB", "Shared")  # what they lend is for the engine
HEAVY = ("psycopg", "fastapi", "rocksdict", "pyspark", "prometheus_client", "typer", "rich", "structlog", "uvicorn")


def test_every_public_name_is_listed_and_imported_at_its_first_use() -> None:
    assert set(compactory._MODULES) == set(compactory.__all__) == set(dir(compactory))
    assert compactory.__all__ == sorted(compactory.__all__)
    assert len(compactory.__all__) <= 64
    assert all(getattr(compactory, name).__doc__ for name in compactory.__all__)
    with pytest.raises(AttributeError, match="no attribute 'GlobalStor'"):
        compactory.GlobalStor  # noqa: B018


def test_what_public_methods_raise_and_return_is_exported() -> None:
    """Nobody has to import from a module of ours to catch an error or to annotate an answer."""
    assert set(errors.__all__) <= set(compactory.__all__)
    returned = {
        found.__name__
        for name in compactory.__all__
        if name not in SEAMS
        for said, member in vars(getattr(compactory, name)).items()
        if isinstance(member, FunctionType | property) and not said.startswith("_")
        for found in _classes(get_type_hints(member.fget if isinstance(member, property) else member).get("return"))
        if found.__module__.startswith("compactory")
    }
    assert returned <= set(compactory.__all__), returned - set(compactory.__all__)


def _classes(hint: Any) -> Iterator[type]:
    """The classes that an annotation is made of."""
    if isinstance(hint, type):
        yield hint
    for part in get_args(hint):
        yield from _classes(part)


def test_a_store_is_a_mapping_of_its_views() -> None:
    """``in``, iteration and ``len`` are about directories; two stores are equal only where they are one."""
    stores = [kind("127.0.0.1:1", ["a", "b"]) for kind in (compactory.GlobalStore, compactory.AsyncGlobalStore) * 2]
    for store in stores:
        assert isinstance(store, Mapping)
        assert (list(store), len(store), "a" in store, "c" in store) == (["a", "b"], 2, True, False)
        assert store.get("c") is None
        assert [view.directory.name for view in store.values()] == ["a", "b"]
    assert len(set(stores)) == 4
    assert stores[0] != stores[2]


def test_importing_loads_nothing_heavy() -> None:
    """In a process of its own: this one has loaded everything already."""
    check = (
        "import sys, compactory\n"
        "assert not {'asyncio', 'confluent_kafka', 'logging'} & set(sys.modules)\n"
        "from compactory import AsyncGlobalStore, DirectoryWriter, GlobalStore\n"
        f"loaded = [name for name in {HEAVY!r} if name in sys.modules]\n"
        "assert not loaded, loaded\n"
    )
    subprocess.run([sys.executable, "-W", "error", "-c", check], check=True)


def test_three_modules_import_the_client() -> None:
    """Everything else goes through `kafka.client`, which asks by `kafka.admin`; the third maps errors."""
    from pathlib import Path

    folder = Path(compactory.__file__).parent
    importing = {path for path in folder.rglob("*.py") if "confluent_kafka" in path.read_text(encoding="utf-8")}
    assert importing == {folder / "kafka" / name for name in ("admin.py", "client.py", "errors.py")}
