"""The options of RocksDB databases: defaults that suit directories, and options of the user."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from compactory.errors import ConfigError, extra_remedy

__all__ = ["COMPRESSIONS", "Resources", "Tuning"]

COMPRESSIONS = ("none", "lz4", "zstd", "snappy")
_MiB = 1 << 20
_BULK_MEMTABLE = 256 * _MiB  # never reached: a bulk topic storage flushes by itself, long before


@dataclass(frozen=True, kw_only=True, slots=True)
class Tuning:
    """The settings of a user; `compactory.RocksDB` describes each."""

    block_cache_bytes: int
    row_cache_bytes: int
    memtable_bytes: int
    compression: str
    configure: Callable[[Any], object] | None

    def problems(self) -> list[str]:
        """Return everything that is wrong with it. Raises ConfigError where rocksdict is missing."""
        library()
        problems = [
            f"{name} must be a whole number of bytes, {minimum} or more, not {value!r}"
            for name, value, minimum in (
                ("block_cache_bytes", self.block_cache_bytes, 0),
                ("row_cache_bytes", self.row_cache_bytes, 0),
                ("memtable_bytes", self.memtable_bytes, _MiB),
            )
            if type(value) is not int or value < minimum
        ]
        if self.compression not in COMPRESSIONS:
            problems.append(f"compression must be one of {', '.join(COMPRESSIONS)}, not {self.compression!r}")
        configure: Any = self.configure
        if not (configure is None or callable(configure)):
            problems.append(f"configure must be a function that takes rocksdict.Options, not {configure!r}")
        return problems


class Resources:
    """Caches, and the memory for changes that are not on disk yet: all databases of a backend share them."""

    def __init__(self, tuning: Tuning) -> None:
        rocks = library()
        self._tuning = tuning
        self._block_cache = rocks.Cache.new_hyper_clock_cache(max(tuning.block_cache_bytes, _MiB), 0)
        self._row_cache = rocks.Cache(tuning.row_cache_bytes) if tuning.row_cache_bytes else None
        self._memtables = rocks.WriteBufferManager(tuning.memtable_bytes, False)

    def figures(self) -> dict[str, float]:
        return {
            "block_cache_bytes": self._block_cache.get_usage(),
            "row_cache_bytes": 0 if self._row_cache is None else self._row_cache.get_usage(),
            "memtables_bytes": self._memtables.get_usage(),
        }

    def options(self, *, bulk: bool) -> Any:
        """Return the options of a database, for following and serving, or for loading in ``bulk`` unread."""
        rocks, tuning = library(), self._tuning
        options, block_options = rocks.Options(raw_mode=True), self._block_options()
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
        options.set_block_based_table_factory(block_options)
        if tuning.configure is not None:
            tuning.configure(options)
        if bulk:
            options.set_write_buffer_size(_BULK_MEMTABLE)
            options.set_allow_concurrent_memtable_write(False)
            options.set_memtable_factory(rocks.MemtableFactory.vector())
        return options

    def _block_options(self) -> Any:
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
