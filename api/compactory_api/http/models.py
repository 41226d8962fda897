"""The bodies of requests and answers, for the OpenAPI document. orjson writes the answers."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, FailFast, Field, WithJsonSchema

from compactory.write.operation import DEFAULT_CURSOR

# Without a format Java and Go take 32 bits.
Long = Annotated[int, Field(ge=-(1 << 63), lt=1 << 63), WithJsonSchema({"type": "integer", "format": "int64"})]


class MissingRecords(BaseModel):
    """The records of a partition that the store has not read yet."""

    topic: str
    partition: int
    missing: Long


class OperationProblem(BaseModel):
    """A problem of one operation of a batch."""

    index: int = Field(description="Of the operation in the batch, from 0")
    key: str | None
    detail: str


class Problem(BaseModel):
    """An error (RFC 9457)."""

    type: str = Field(description="A URI that names the kind of error; it never changes")
    title: str
    status: int
    detail: str | None = None
    errors: list[str | OperationProblem] | None = Field(
        None, description="Every problem, where there are several; of a batch those of its first refused operation"
    )
    gap: list[MissingRecords] | None = Field(None, description="With 412: offsets still missing, by partition")
    age_seconds: float | None = Field(None, description="With a stale 503: the data's age; null where it has none yet")
    max_age_seconds: float | None = Field(None, description="With a stale 503: what was demanded")
    outcome: Literal["unknown", "not written"] | None = Field(
        None, description="With a 503 of a write; unknown: the same request with its Idempotency-Key tells"
    )
    cursor: str | None = Field(
        None,
        description="With 410: read the directory, then watch on from here. With 409 of a batch: the stored cursor",
    )


class Origin(BaseModel):
    partition: int
    offset: Long
    timestamp_ms: Long = Field(description="The record's time, milliseconds since 1970 UTC; -1 where it has none")


class ListedEntry(Origin):
    key: str
    value: Any = Field(description='The JSON of the topic; text as a string; other bytes as {"base64": …}')


class ListedEntries(BaseModel):
    """A page in the order of keys. It may be shorter than asked for; the last one has no ``next_cursor``."""

    entries: list[ListedEntry]
    next_cursor: str | None


class DirectoryChange(Origin):
    """A change of one entry. Values are as in `ListedEntry`."""

    kind: Literal["put", "delete"]
    key: str
    old: Any = Field(description="null where there was no value")
    new: Any = Field(description="null for a delete")


class BatchOperation(BaseModel):
    model_config = ConfigDict(extra="forbid")

    op: Literal["put", "patch", "delete", "post"]
    key: str | None = None
    value: Any = None
    if_match: str | None = Field(None, description="As the header; or one etag as results have it")
    if_none_match: str | None = None


class WriteLine(BatchOperation):
    idempotency_key: str | None = None


class WriteAnswer(BaseModel):
    """The answer to one line of a bulk write: the position of the record, or a problem."""

    line: int = Field(description="Counted from 1, without blank lines")
    status: int
    key: str | None = None
    etag: str | None = None
    offset: str | None = Field(None, description="topic:partition:offset")
    problem: Problem | None = None


class BatchCursor(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)

    name: str = DEFAULT_CURSOR
    expected: str | None = Field(None, description="The stored cursor, else the batch gets 409; null: none is stored")
    next: str = Field(description="The cursor to store with the batch, at most 4096 bytes")


class WriteBatch(BaseModel):
    """1 to 100 operations on different keys, all or none; and the cursor to store with them."""

    operations: list[BatchOperation]
    cursor: BatchCursor | None = None


class WriteBatchResult(BaseModel):
    status: int
    key: str
    etag: str
    offset: str = Field(description="topic:partition:offset")


class WriteBatchAnswer(BaseModel):
    results: list[WriteBatchResult] = Field(description="Of the operations, in order")
    cursor: str | None = Field(description="The cursor as stored; null without one")


class StoredCursor(BaseModel):
    name: str
    cursor: str | None = Field(description="null if none is stored")


class Outcome(BaseModel):
    key: str
    event: str = Field(description="The ETag of the write")
    state: str = Field(description="pending, or the directory that has the outcome")
    value: Any = None


class BatchQuestion(BaseModel):
    keys: Annotated[list[str], FailFast()] = Field(description="1,000 at most; more are refused with 413")


class BatchAnswer(BaseModel):
    """The entries found, and the keys without an entry."""

    found: dict[str, Any]
    missing: list[str]
    bad: list[str] = Field(description="Keys whose newest record is bad and of which no good value is known")


class DirectoryState(BaseModel):
    name: str
    topic: str
    key: str | None = Field(None, description="Field of the value that lookups use; null: the record's key")
    state: str = Field(description="new, loading, ready, stale, failed or closed")
    stale: str | None = Field(None, description="Why the served data is old, while its topic is read anew")
    entries: Long | None = Field(description="null before the store is ready")
    bad_records: int = Field(description="Outstanding ones: no newer record of their key has superseded them")
    unusable: str | None = Field(None, description="Why none of its records is usable; null if some are")
    lag: Long = Field(description="Offsets to read until the last known end, over all partitions")
    age_seconds: float | None = Field(description="Seconds since the directory last had every record of its topic")
    partitions: int


class Directories(BaseModel):
    directories: list[DirectoryState]


class RecordProblem(Origin):
    """A bad record. The last three need the admin scope."""

    directory: str
    topic: str
    error: str = Field(description="The kind of error; with the admin scope its text too")
    key_base64: str | None = None
    value_base64: str | None = None
    stacktrace: str | None = None


class Errors(BaseModel):
    """The outstanding bad records: those that no newer record of their key has superseded."""

    errors: list[RecordProblem]
    outstanding: int = Field(description="Number of all, including those not shown")


class RecordId(BaseModel):
    model_config = ConfigDict(strict=True)  # false is no offset

    directory: str
    partition: int
    offset: Long


class RecordIds(BaseModel):
    """The bad records to retry or skip; all outstanding ones without a body."""

    errors: list[RecordId]


class Resolved(BaseModel):
    """The number of records retried or skipped. Other records are still bad, or a newer record has superseded them."""

    done: int
    outstanding: int = Field(description="Number of records that are still bad")


class RangeDigest(BaseModel):
    """The records of a key range: how many, and the two sums of their digests as 32 hexadecimal digits."""

    count: Long
    digest: str


class Definition(BaseModel):
    """The part of a directory's definition that decides which records it holds."""

    key: str | None
    active: str | None
    envelope: str
    decode: str = Field(description="How values are checked: object (JSON), text, bytes (not at all) or callable")
    indexes: list[list[str]] = Field(description="The fields of each")


class Digest(BaseModel):
    """A digest of a directory: topic keys and values of its records, in ranges by the first byte of the key's SHA-256.

    Left out: deleted entries, inactive ones among them, and keys whose newest record is bad.
    """

    directory: str
    topic: str
    topic_id: str | None
    version: int = Field(description="Of the digests' definition (decision 0020)")
    definition: Definition
    positions: dict[str, Long] = Field(description="Partition → next offset. Only the records before it were applied")
    bad: int = Field(description="Keys whose newest record is bad")
    seconds: float = Field(description="Duration; near 0 if nothing has changed since the last digest")
    count: Long
    digest: str = Field(description="Of all ranges together")
    ranges: list[RangeDigest] = Field(description="The 256 ranges")


class BlockingPartition(BaseModel):
    """A partition that is not read far enough, or a directory none of whose records is usable."""

    topic: str
    partition: int | None = Field(description="null for a topic that does not exist yet, and for a directory")
    position: Long | None
    target: Long | None
    directory: str | None = Field(None, description="The directory none of whose records is usable")
    reason: str | None = Field(None, description="Why no record is usable")


class Readiness(BaseModel):
    ready: bool
    blocking: list[BlockingPartition]
    stopping: bool | None = Field(None, description="With 503: true while the server shuts down")


class LoadingState(BaseModel):
    """The progress of the reading towards the high watermarks."""

    read: Long = Field(description="Offsets; control records and compacted holes included")
    total: Long
    eta_seconds: float | None


class PartitionState(BaseModel):
    topic: str
    topic_id: str | None
    partition: int
    position: Long = Field(description="Next offset to read")
    high_watermark: Long | None
    lag: Long | None


class WorkerState(BaseModel):
    """The state of one worker. The fields from ``stale`` on belong to a store; other workers add their own."""

    model_config = ConfigDict(extra="allow")

    name: str
    live: bool
    ready: bool
    state: str | None = None
    stale: dict[str, str] | None = Field(None, description="Why the served data is old, by topic; empty unless STALE")
    loading: LoadingState | None = Field(None, description="null where nothing is being loaded")
    failure: str | None = Field(None, description="The kind of error that ended it")
    load_seconds: float | None = Field(None, description="Duration of the start")
    bad_records: int | None = Field(None, description="Number since the start")
    contested_keys: int | None = Field(None, description="Keys with records in two partitions of their topic")
    directories: list[DirectoryState] | None = None
    partitions: list[PartitionState] | None = None


class Status(BaseModel):
    version: str
    live: bool
    ready: bool
    uptime_seconds: float
    workers: list[WorkerState]
