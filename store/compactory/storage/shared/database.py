"""One generation of a topic that processes share: written by its owner, followed by the others."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from compactory.errors import CompactoryError, StoreClosed
from compactory.storage.checkpoint import Checkpoint
from compactory.storage.ordered.contents import State
from compactory.storage.ordered.database import Database
from compactory.storage.ordered.directory_storage import Entries
from compactory.storage.ordered.folder import TopicFolder, remove
from compactory.storage.shared.environment import Using, copy_of, failure_of, opened
from compactory.storage.shared.moment import Moment, long_item

__all__ = ["Changes", "SharedDatabase", "SharedEntries"]

_SPARE = 64 << 20  # bytes by which a file may exceed three times what is in use


class Changes(dict[bytes, bytes | None]):
    """A batch of changes: values by key, None for a key that goes."""

    put = dict.__setitem__

    def delete(self, key: bytes) -> None:
        """Let a key go."""
        self[key] = None

    def size_in_bytes(self) -> int:
        """Return the bytes of all values."""
        return sum(map(len, filter(None, self.values())))


class SharedDatabase(Database):
    """A generation as one process sees it.

    The owner writes each batch in one transaction. A follower reads Kafka itself: its changes stay in its memory, over
    a read transaction of the owner's copy. Every few seconds it takes a newer copy, as soon as its own position has
    reached that of the copy, and forgets the changes that are in it. So lookups never go back or ahead, and a follower
    does not depend on its owner to be current.

    One thread writes, any thread reads. ``path`` is None where nothing is shared yet. ``get`` is that of the newest
    `Moment`.
    """

    moment: Moment | None

    def __init__(self, folder: TopicFolder, path: Path | None, map_bytes: int, *, bulk: bool, owned: bool) -> None:
        self.bulk = bulk
        self._folder = folder
        self._map_bytes = map_bytes
        self._owned = owned
        self._recent: dict[bytes, bytes | None] = {}  # a follower's changes since the positions ``_since``
        self._since: Checkpoint | None = None
        self._next: tuple[Any, Checkpoint] | None = None  # a newer copy, until our position has reached it
        self.moment = None
        self._environment: Any = None
        self.path = folder.path
        self._enter(path)
        self._show(self._begin(), {})
        self._since = None if owned else self.checkpoint()

    def get_many(self, keys: list[bytes]) -> list[bytes | None]:
        with self.mapped():
            return list(map(self.get, keys))

    def batch(self) -> Changes:
        return Changes()

    def write(self, batch: Changes) -> None:
        with self.mapped():
            if self._owned:
                self._put(batch)
                self._show(self._begin(), {})
                return
            before = self.snapshot()
            if self.bulk:  # nobody reads it yet
                before.changes.update(batch)
            else:
                self._recent.update(batch)
                self._show(before.transaction, {**before.changes, **batch})
                self._take()

    def flush(self, *, wait: bool = True) -> None:  # noqa: ARG002 (RocksDB's)
        """Bound what readers hold: the owner its file, a follower its changes."""
        with self.mapped():
            if self._owned:
                self._bound_file()
            elif not self.bulk:
                self._look()

    def snapshot(self) -> Moment:
        if self.moment is None:
            raise StoreClosed("the store was closed")
        return self.moment

    def reopen(self, *, bulk: bool) -> None:
        """Go on with readers, after a load."""
        self.bulk = bulk

    def checkpoint(self) -> Checkpoint | None:
        """Return how far what is visible goes."""
        found = State.of(self.get)
        return None if found is None else found.checkpoint

    def figures(self) -> dict[str, float]:
        """Return the size of the shared copy, and how many changes this process keeps over it."""
        found = {"own_changes": float(len(self.snapshot().changes))}
        if self._environment is not None:
            found["disk_bytes"] = (self._environment.info()["last_pgno"] + 1) * self._environment.stat()["psize"]
        return found

    def _meaning(self, error: Exception) -> CompactoryError:
        return failure_of(error, self.path)

    def close(self) -> None:
        """Let go of it; the owner brings it to disk. Idempotent. Moments that are still held can be read."""
        environment, self._environment = self._environment, None
        self._next = None
        if environment is not None and self._owned:
            environment.sync(True)
            Using(self.path).end()
        self.moment, self.get = None, self._closed

    def _closed(self, _key: bytes) -> bytes | None:
        raise StoreClosed("the store was closed")

    def _enter(self, path: Path | None) -> None:
        if path is not None:
            self.path, self._environment = path, opened(path, self._map_bytes, create=self._owned)
        if self._owned:
            Using(self.path).begin()

    def _begin(self) -> Any:
        return None if self._environment is None else self._environment.begin()

    def _show(self, transaction: Any, changes: dict[bytes, bytes | None]) -> None:
        self.moment = Moment(transaction, changes, self.failed)
        self.get = self.moment.get

    def _put(self, batch: Changes) -> None:
        assert self._environment is not None
        items = sorted(long_item(key, value) for key, value in batch.items())
        with self._environment.begin(write=True) as transaction:
            for key in [key for key, value in items if value is None]:
                transaction.delete(key)
            with transaction.cursor() as cursor:
                cursor.putmulti([item for item in items if item[1] is not None])

    def _bound_file(self) -> None:
        """Go on in another file where readers that don't move on have made this one large: it grows no more."""
        environment = self._environment
        assert environment is not None
        environment.reader_check()  # of processes that are gone
        used = environment.stat()
        pages = used["branch_pages"] + used["leaf_pages"] + used["overflow_pages"]
        if (
            self._folder.current() != self.path
            or (environment.info()["last_pgno"] - 3 * pages) * used["psize"] <= _SPARE
        ):
            return
        former, path = self.path, self._folder.next()
        path.mkdir(parents=True)
        environment.copy(str(path), compact=True)
        self._enter(path)
        self._show(self._begin(), {})
        self._folder.point_to(path)
        remove(former)

    def _look(self) -> None:
        """Look for a newer copy, and begin to gather what comes after the changes that the next one has to have."""
        ours = State.of(self.get)
        if self._next is not None or ours is None or ours.checkpoint is None:
            return
        if self._since is None:
            self._recent, self._since = {}, ours.checkpoint
            return
        if (copy := copy_of(self._folder, self._map_bytes)) is None:
            return
        path, transaction = copy
        theirs = State.of(transaction.get)
        goes_to = None if theirs is None else _continued(theirs, ours, self._since)
        if goes_to is not None:
            self._next = transaction, goes_to
            self._enter(path)
            self._take()

    def _take(self) -> None:
        """Take the newer copy, once our position has reached it."""
        mine = self.checkpoint() if self._next is not None else None
        if self._next is None or mine is None or not _reached(mine, self._next[1]):
            return
        (transaction, _), self._next = self._next, None
        self._show(transaction, dict(self._recent))
        self._recent, self._since = {}, mine


class SharedEntries(Entries):
    """Lookup key → packed record, as committed last: `Entries`, with one call of Python's less in a lookup."""

    _source: Any

    def get(self, name: bytes, default: Any = None) -> Any:
        try:
            key, moment = self._prefix + name, self._source.moment
            if key not in moment.changes:
                packed = moment.shared(key)
                if packed is not None:
                    return packed
        except Exception:  # noqa: BLE001, S110 (below it says what is wrong; a long key is no error)
            pass
        return super().get(name, default)


def _reached(one: Checkpoint, other: Checkpoint) -> bool:
    """Say whether one position is that of the other, or behind it, in every partition."""
    return all(one.positions.get(part, -1) >= position for part, position in other.positions.items())


def _continued(theirs: State, ours: State, since: Checkpoint) -> Checkpoint | None:
    """Return how far a copy goes, if it is of the same topic, made alike, and has what we had at ``since``."""
    copy, mine = theirs.checkpoint, ours.checkpoint
    if copy is None or mine is None or not copy.complete or not _reached(copy, since):
        return None
    alike = (copy.topic_id, copy.definition, theirs.parts) == (mine.topic_id, mine.definition, ours.parts)
    return copy if alike else None
