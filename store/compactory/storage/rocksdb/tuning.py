"""The options of RocksDB databases: defaults that suit directories, and options of the user."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any

from compactory.errors import ConfigError, extra_remedy

__all__ = ["COMPRESSIONS", "Resources", "Tuning"]

COMPRESSIONS = ("none", "lz4", "zstd", "snappy")
_MiB = 1 << 20
_BULK_MEMTABLE = 256 * _MiB  # never reached: a bulk topic storage flushes by itself, long before

# Options that would break what the backend promises, with the reason.
_REFUSED = {
    "memtable_factory": "it is chosen by what the store is doing",
    "allow_concurrent_memtable_write": "it is chosen by what the store is doing",
    "inplace_update_support": "readers would see half of a change",
    "prefix_extractor": "keys are laid out by the store",
    "fifo_compaction_options": "it drops entries that are in the topic",
    "plain_table_factory": "it can't be read in order",
    "cuckoo_table_factory": "it can't be read in order",
    "block_based_table_factory": "give its options by name, such as block_size",
    "block_cache": "give block_cache_bytes",
    "row_cache": "give row_cache_bytes",
    "compression_type": "give compression",
    "write_buffer_manager": "give memtable_bytes",
    "error_if_exists": "a restart would fail",
    "db_paths": "the store keeps a topic's files in one folder",
    "env": "files are the operating system's",
}
_CHOICES = {
    "bottommost_compression_type": "DBCompressionType",
    "blob_compression_type": "DBCompressionType",
    "compression_per_level": "DBCompressionType",
    "compaction_style": "DBCompactionStyle",
    "checksum_type": "ChecksumType",
    "index_type": "BlockBasedIndexType",
    "data_block_index_type": "DataBlockIndexType",
}


@dataclass(frozen=True, kw_only=True, slots=True)
class Tuning:
    """The settings of a user; `compactory.RocksDB` describes each."""

    block_cache_bytes: int
    row_cache_bytes: int
    memtable_bytes: int
    compression: str
    options: Mapping[str, Any]

    def problems(self) -> list[str]:
        """Return everything that is wrong with it."""
        problems = [
            f"{name} must be a whole number of bytes, {least} or more, not {value!r}"
            for name, value, least in (
                ("block_cache_bytes", self.block_cache_bytes, 0),
                ("row_cache_bytes", self.row_cache_bytes, 0),
                ("memtable_bytes", self.memtable_bytes, _MiB),
            )
            if type(value) is not int or value < least
        ]
        if self.compression not in COMPRESSIONS:
            problems.append(f"compression must be one of {', '.join(COMPRESSIONS)}, not {self.compression!r}")
        if not problems:
            problems.extend(self._option_problems())
        return problems

    def _option_problems(self) -> Iterator[str]:
        rocks = library()
        database, table = rocks.Options(raw_mode=True), rocks.BlockBasedOptions()
        known = sorted(_known(rocks.Options) | _known(rocks.BlockBasedOptions))
        for name, value in self.options.items():
            if name in _REFUSED:
                yield f"option {name!r} can't be set: {_REFUSED[name]}"
            elif name not in known:
                close = get_close_matches(name, known, n=1)
                hint = f"; did you mean {close[0]!r}?" if close else "; the names are those of rocksdict's set_…"
                yield f"RocksDB has no option {name!r}{hint}"
            else:
                try:
                    _set(database, table, name, value)
                except (TypeError, ValueError, OverflowError, AttributeError) as error:
                    yield f"option {name!r} can't be {value!r}: {error}"


class Resources:
    """Caches, and the memory for changes that are not on disk yet: all databases of a backend share them."""

    def __init__(self, tuning: Tuning) -> None:
        rocks = library()
        self._tuning = tuning
        self._block_cache = rocks.Cache.new_hyper_clock_cache(max(tuning.block_cache_bytes, _MiB), 0)
        self._row_cache = rocks.Cache(tuning.row_cache_bytes) if tuning.row_cache_bytes else None
        self._memtables = rocks.WriteBufferManager(tuning.memtable_bytes, False)

    def figures(self) -> dict[str, float]:
        """Return the bytes in use."""
        return {
            "block_cache_bytes": self._block_cache.get_usage(),
            "row_cache_bytes": 0 if self._row_cache is None else self._row_cache.get_usage(),
            "memtables_bytes": self._memtables.get_usage(),
        }

    def options(self, *, bulk: bool) -> Any:
        """Return the options of a database, for following and serving, or for loading in ``bulk`` unread."""
        rocks, tuning = library(), self._tuning
        options, table = rocks.Options(raw_mode=True), self._table()
        options.create_if_missing(True)
        jobs = max(2, min(4, os.cpu_count() or 2))
        options.set_max_background_jobs(jobs)
        options.set_max_subcompactions(2)
        options.set_write_buffer_size(max(_MiB, tuning.memtable_bytes // 4))
        options.set_max_write_buffer_number(4)
        options.set_write_buffer_manager(self._memtables)
        options.set_compression_type(getattr(rocks.DBCompressionType, tuning.compression)())
        if self._row_cache is not None:
            options.set_row_cache(self._row_cache)
        self._shape(options, bulk=bulk)
        for name, value in tuning.options.items():
            _set(options, table, name, value)
        if bulk:
            options.set_write_buffer_size(_BULK_MEMTABLE)
            options.set_allow_concurrent_memtable_write(False)
            options.set_memtable_factory(rocks.MemtableFactory.vector())
        options.set_block_based_table_factory(table)
        return options

    def _table(self) -> Any:
        rocks = library()
        table = rocks.BlockBasedOptions()
        table.set_block_cache(self._block_cache)
        table.set_bloom_filter(10, False)
        table.set_data_block_index_type(rocks.DataBlockIndexType.binary_and_hash())
        table.set_data_block_hash_ratio(0.75)
        return table

    def _shape(self, options: Any, *, bulk: bool) -> None:
        """Small flushes every few seconds: universal compaction merges them without rewriting the bulk each time."""
        options.set_compaction_style(library().DBCompactionStyle.universal())
        options.set_level_zero_file_num_compaction_trigger(20 if bulk else 4)
        options.set_level_zero_slowdown_writes_trigger(1000)  # slowed-down writes would hold the interpreter's lock
        options.set_level_zero_stop_writes_trigger(1000)
        options.set_soft_pending_compaction_bytes_limit(0)
        options.set_hard_pending_compaction_bytes_limit(0)
        options.set_keep_log_file_num(2)
        options.set_max_log_file_size(_MiB)
        options.set_max_manifest_file_size(16 * _MiB)
        options.set_stats_dump_period_sec(0)
        options.set_stats_persist_period_sec(0)
        options.set_skip_stats_update_on_db_open(True)


def library() -> Any:
    """Return the module ``rocksdict``, imported when first needed. Raises ConfigError with the remedy."""
    try:
        import rocksdict
    except ImportError as error:
        raise ConfigError(
            f"the RocksDB backend needs the package rocksdict ({error}): {extra_remedy('rocksdb')}"
        ) from error
    return rocksdict


def _known(kind: type) -> set[str]:
    return {name.removeprefix("set_") for name in dir(kind) if name.startswith("set_")}


def _set(database: Any, table: Any, name: str, value: Any) -> None:
    """Call the setter of an option: of the database, else of its table format."""
    setter = getattr(database, f"set_{name}", None) or getattr(table, f"set_{name}")
    kind = _CHOICES.get(name)
    if kind is not None:
        value = [_choice(kind, item) for item in value] if isinstance(value, list | tuple) else _choice(kind, value)
    if isinstance(value, list | tuple) and name != "compression_per_level":
        setter(*value)
    else:
        setter(value)


def _choice(kind: str, value: Any) -> Any:
    if not isinstance(value, str):
        return value
    choices = getattr(library(), kind)
    names = [name for name in dir(choices) if not name.startswith("_") and name != "fifo"]  # fifo drops entries
    if value not in names:
        raise ValueError(f"it is one of {', '.join(names)}")
    return getattr(choices, value)()
