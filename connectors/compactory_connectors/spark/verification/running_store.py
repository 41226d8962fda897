"""The questions of a comparison to a running store, and the answers."""

from __future__ import annotations

import base64
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from compactory.directory import Directory, Index
from compactory.errors import CompactoryError
from compactory.read.digest import VERSION, DirectoryDigest, RangeDigest

__all__ = ["RunningStore", "StoreDigest", "StoreRecord", "read_digest", "read_record"]

_DECODERS: Mapping[str, Any] = {"object": dict, "text": str}  # of others nothing is known but that bytes come


class RunningStore(Protocol):
    """A server's digest routes. Raises Unreachable, ConfigError where it refuses, CompactoryError for what it lacks."""

    @property
    def place(self) -> str:
        """Where it is, for people."""
        ...

    def digest(self, directory: str) -> Mapping[str, Any]:
        """The answer of ``GET /v1/directories/{directory}/digest``."""
        ...

    def digest_records(
        self, directory: str, ranges: Collection[int], *, values: bool = False
    ) -> Iterator[Mapping[str, Any]]:
        """The records of some ranges; all of them, or an error."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreDigest:
    """A store's digest of a directory at ``positions``, partition → next offset."""

    directory: Directory[Any]
    """As the store has it: how its values are judged."""
    callable: bool
    """Values are checked by a function of the service's own, which nobody else has."""
    topic_id: str | None
    positions: Mapping[int, int]
    digest: DirectoryDigest
    bad: int


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreRecord:
    """A record that a store holds; ``digest`` None: only known as the key of a bad record."""

    key: bytes
    digest: bytes | None
    bad: bool
    value: bytes | None


def read_digest(answer: Mapping[str, Any]) -> StoreDigest:
    """Read an answer. Raises CompactoryError for one of another version of digests."""
    if answer["version"] != VERSION:
        raise CompactoryError(
            f"the store computes digests of version {answer['version']}, this program of version {VERSION}:"
            " use the same version of compactory for both"
        )
    said = answer["definition"]
    directory = Directory(
        answer["directory"],
        topic=answer["topic"],
        key=said["key"],
        active=said["active"],
        envelope=said["envelope"],
        indexes=[Index(*fields) for fields in said["indexes"]],
        decode=_DECODERS.get(said["decode"], bytes),
    )
    return StoreDigest(
        directory=directory,
        callable=said["decode"] == "callable",
        topic_id=answer["topic_id"],
        positions={int(number): position for number, position in answer["positions"].items()},
        digest=DirectoryDigest([RangeDigest.read(each["count"], each["digest"]) for each in answer["ranges"]]),
        bad=answer["bad"],
    )


def read_record(line: Mapping[str, Any]) -> StoreRecord:
    """Read a line of the records' answer."""
    key = _bytes(line, "key")
    assert key is not None
    digest = line.get("digest")
    return StoreRecord(
        key=key,
        digest=bytes.fromhex(digest) if digest is not None else None,
        bad=line["bad"],
        value=_bytes(line, "value"),
    )


def _bytes(line: Mapping[str, Any], name: str) -> bytes | None:
    if name in line:
        text: str = line[name]
        return text.encode()
    encoded = line.get(f"{name}_base64")
    return None if encoded is None else base64.b64decode(encoded)
