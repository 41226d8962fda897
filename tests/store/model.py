"""A plain model of a directory: the whole history is kept and every answer is worked out from it anew."""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from compactory import Directory


@dataclass(frozen=True)
class Row:
    key: bytes
    value: bytes | None
    partition: int
    offset: int
    timestamp: int

    @property
    def newer(self) -> tuple[int, int, int]:
        return (self.timestamp, self.partition, self.offset)


@lru_cache(1000)
def _document(value: bytes) -> Any:
    """The JSON document, or None; it is asked for anew after each record that follows."""
    try:
        return json.loads(value)
    except ValueError:
        return None


class Model:
    """What a store should answer after a history, by the rules as the documentation states them."""

    def __init__(self, directory: Directory[Any]) -> None:
        self.directory = directory
        self.rows: list[Row] = []

    def entries(self) -> dict[str, bytes]:
        """Lookup key → bytes of the answering record."""
        owners: dict[str, list[Row]] = {}
        for row in self._newest_good().values():
            owners.setdefault(self._name(row), []).append(row)
        return {name: max(rows, key=lambda row: row.newer).value or b"" for name, rows in owners.items()}

    def bad_keys(self) -> set[bytes]:
        """Topic keys whose newest record is bad."""
        bad: set[bytes] = set()
        for key, rows in self._by_key().items():
            if self._is_bad(self._log_order(rows)[-1]):
                bad.add(key)
        return bad

    @staticmethod
    def find(entries: dict[str, bytes], field: str, wanted: Any) -> list[str]:
        """Lookup keys whose answering entry has the value."""
        return sorted(name for name, value in entries.items() if _document(value).get(field) == wanted)

    def _newest_good(self) -> dict[bytes, Row]:
        """Topic key → its newest record, where that is a live value; bad records are passed over."""
        found = {}
        for key, rows in self._by_key().items():
            good = [row for row in self._log_order(rows) if not self._is_bad(row)]
            if good and not self._is_deletion(good[-1]):
                found[key] = good[-1]
        return found

    def _by_key(self) -> dict[bytes, list[Row]]:
        by_key: dict[bytes, list[Row]] = {}
        for row in self.rows:
            by_key.setdefault(row.key, []).append(row)
        return by_key

    def _log_order(self, rows: list[Row]) -> list[Row]:
        return sorted(rows, key=lambda row: row.offset)

    def _is_bad(self, row: Row) -> bool:
        if row.value is None:
            return False
        doc = _document(row.value)
        if not isinstance(doc, dict):
            return True
        if self.directory.active and doc.get(self.directory.active) is False:
            return False
        field = self.directory.key
        return field is not None and (isinstance(doc.get(field), bool) or not isinstance(doc.get(field), str | int))

    def _is_deletion(self, row: Row) -> bool:
        active = self.directory.active
        return row.value is None or bool(active and _document(row.value).get(active) is False)

    def _name(self, row: Row) -> str:
        field = self.directory.key
        return row.key.decode() if field is None else str(_document(row.value or b"")[field])
