"""The definition of a directory: where its records come from, how they are looked up and decoded."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Iterator
from dataclasses import KW_ONLY, dataclass
from typing import (
    TYPE_CHECKING,
    Any,
    Generic,
    Literal,
    Protocol,
    TypedDict,
    TypeVar,
    Unpack,
    get_args,
    get_origin,
    overload,
)

from compactory.errors import ConfigError
from compactory.records import Entry, is_topic_name

__all__ = ["Directory", "Envelope", "Index", "OnStale", "Projection"]

T = TypeVar("T")
Envelope = Literal["none", "connect", "debezium"]
Unwrap = Callable[[bytes], dict[str, Any] | None]
OnStale = Literal["serve", "raise"]


class Projection(Protocol):
    """An object of yours that is fed every change of a directory, such as sums or an index; ``projection`` makes it.

    The thread that reads the topic calls ``apply`` before lookups see the change. What ``apply`` raises makes the
    record a bad one: the entry stays as it was, so leave your state as it was too.
    """

    def apply(self, change: Any, /) -> object:
        """Take a `Change`."""
        ...


@dataclass(frozen=True, init=False, slots=True)
class Index:
    """A second way to look entries up: by one field of the value, or by several together.

    ``"address.city"`` reaches into nested objects. Text, numbers and booleans can be indexed; an entry with a field
    that is null or missing is left out. ``unique`` says that one entry answers for a value: of several, the newest.
    ``name`` defaults to the fields joined by ``_``.
    """

    fields: tuple[str, ...]
    unique: bool
    name: str

    def __init__(self, *fields: str, unique: bool = False, name: str | None = None) -> None:
        names: tuple[Any, ...] = fields
        flag: Any = unique
        if not names or not all(isinstance(field, str) and field.strip() for field in names):
            raise ConfigError(f"Index{fields!r}: give the names of one or more fields")
        if len(set(fields)) != len(fields):
            raise ConfigError(f"Index{fields!r} names a field twice")
        if not isinstance(flag, bool):
            raise ConfigError(f"Index{fields!r}: unique must be True or False, not {flag!r}")
        index_name: Any = "_".join(fields) if name is None else name
        if not isinstance(index_name, str) or not index_name.strip():
            raise ConfigError(f"Index{fields!r}: name must be text, not {index_name!r}")
        object.__setattr__(self, "fields", tuple(fields))
        object.__setattr__(self, "unique", unique)
        object.__setattr__(self, "name", index_name)


class _Options(TypedDict, total=False):
    """The options of a `Directory` beside its name and ``decode``, for type checkers."""

    topic: str | None
    key: str | None
    active: str | None
    indexes: Iterable[Index]
    envelope: Envelope | Unwrap
    writable: bool
    cache_decoded: bool
    max_age: float | None
    on_stale: OnStale
    keep_changes: bool
    rules: Any
    projection: Callable[[], Projection] | None


@dataclass(frozen=True, slots=True)
class Directory(Generic[T]):
    """A reference table, fed by one topic.

    ``name``      its name in the store, on the command line and in URLs
    ``topic``     the topic; default: the name
    ``key``       look up by this field of the value (text, or a whole number in decimal); default: the record's key
    ``active``    a field of the value; JSON ``false`` there means that the entry is deleted, anything else does not
    ``indexes``   further ways to look up
    ``decode``    how bytes become a value: ``dict`` (a JSON object), ``str``, ``bytes``, a pydantic model, a type that
                  msgspec reads (a dataclass, a Struct, a TypedDict, an attrs class, ``list[Terminal]``), or any
                  callable that takes the bytes, or the record where its parameter is annotated `Entry`. A value that
                  does not fit the types of the fields is a bad record. Each read decodes afresh
    ``envelope``  the wrapper of the JSON: ``connect`` (schema and payload) or ``debezium`` (before, after, op); for
                  other formats (Avro, Protobuf) a callable that turns the bytes into an object, a deletion into None
    ``writable``  whether a `DirectoryWriter` may write it; sources and other producers do not need it
    ``cache_decoded``  whether a value is decoded once and then shared by all readers, for as long as its record is
                  the newest: faster, and read-only (JSON objects become mapping proxies, lists tuples; instances
                  of your own classes have to be immutable). Costs memory for each value that is read
    ``max_age``   seconds since the directory was last known to be at the end of its topic, above which reads see
                  stale data; None: no limit. The store asks Kafka every two seconds, so use three or more
    ``on_stale``  effect on a read whose ``max_age`` is exceeded: ``serve`` the old data (and count it), or
                  ``raise`` StaleData
    ``keep_changes``  whether changes are kept from the start on, for a `View.watch` from a cursor older than the first
                  watch; else they are kept from the first watch on
    ``rules``     `compactory_mastered.WriteRules` where the directory is mastered in Kafka; None: elsewhere
    ``projection``  a class of yours (or a callable without parameters) whose object is fed every change from the first
                  record on: see `Projection` and `View.projection`

    Raises ConfigError with every problem at once.
    """

    name: str
    _: KW_ONLY
    topic: str = None  # type: ignore[assignment]  # the name, once it is made
    key: str | None = None
    active: str | None = None
    indexes: tuple[Index, ...] = ()
    decode: Callable[[bytes], T] | Callable[[Entry], T] | type[T] = dict  # type: ignore[assignment]
    envelope: Envelope = "none"  # or an Unwrap; readers of this field know names only
    writable: bool = False
    cache_decoded: bool = False
    max_age: float | None = None
    on_stale: OnStale = "serve"
    keep_changes: bool = False
    rules: Any = None
    projection: Callable[[], Projection] | None = None

    if TYPE_CHECKING:

        @overload
        def __init__(self: Directory[dict[str, Any]], name: str, **options: Unpack[_Options]) -> None: ...
        @overload
        def __init__(
            self: Directory[dict[str, Any]], name: str, *, decode: type[dict[Any, Any]], **options: Unpack[_Options]
        ) -> None: ...
        @overload
        def __init__(
            self, name: str, *, decode: type[T] | Callable[[bytes], T], **options: Unpack[_Options]
        ) -> None: ...
        @overload
        def __init__(self, name: str, *, decode: Callable[[Entry], T], **options: Unpack[_Options]) -> None: ...
        def __init__(self, name: str, **options: Any) -> None: ...

    def __post_init__(self) -> None:
        topic: str | None = self.topic
        object.__setattr__(self, "topic", self.name if topic is None else topic)
        if not isinstance(self.indexes, Iterable):
            raise ConfigError(f"directory {self.name!r}: indexes must be a list of Index(…), not {self.indexes!r}")
        object.__setattr__(self, "indexes", tuple(self.indexes))
        problems = [f"directory {self.name!r}: {problem}" for problem in _problems(self)]
        if problems:
            raise ConfigError(problems)

    @property
    def envelope_name(self) -> str:
        """The envelope; ``callable`` for one, which has no identity that outlives the process."""
        return self.envelope if self.envelope in get_args(Envelope) else "callable"

    @property
    def decodes_entries(self) -> bool:
        """True if ``decode`` takes an `Entry` and not bytes."""
        if isinstance(self.decode, type) or get_origin(self.decode) is not None:
            return False
        try:
            parameters = inspect.signature(self.decode).parameters.values()
        except ValueError:  # of a function written in C
            return False
        return any(first.annotation in (Entry, "Entry", "compactory.Entry") for first in list(parameters)[:1])

    def index_over(self, fields: Iterable[str]) -> Index | None:
        """Return the index over exactly these fields, in whatever order they are given."""
        names = frozenset(fields)
        return next((index for index in self.indexes if frozenset(index.fields) == names), None)

    def index_named(self, name: str) -> Index | None:
        """Return the index of this name."""
        return next((index for index in self.indexes if index.name == name), None)


def _problems(directory: Any) -> Iterator[str]:
    if not isinstance(directory.name, str) or not directory.name.strip() or "/" in directory.name:
        yield "the name must be text without '/'"
    if not is_topic_name(directory.topic):
        yield f"{directory.topic!r} is no topic's name: those are of letters, digits, '.', '_' and '-'"
    for option in ("key", "active"):
        value = getattr(directory, option)
        if value is not None and (not isinstance(value, str) or not value.strip()):
            yield f"{option} must name a field of the value, not {value!r}"
    if not callable(directory.envelope) and directory.envelope not in get_args(Envelope):
        yield f"envelope must be one of {', '.join(get_args(Envelope))}, not {directory.envelope!r}"
    for option in ("writable", "cache_decoded", "keep_changes"):
        if not isinstance(getattr(directory, option), bool):
            yield f"{option} must be True or False, not {getattr(directory, option)!r}"
    yield from _write_problems(directory)
    yield from _callable_problems(directory)
    yield from _age_problems(directory)
    yield from _index_problems(directory)


def _write_problems(directory: Any) -> Iterator[str]:
    if directory.rules is not None and not callable(getattr(directory.rules, "shown", None)):
        yield f"rules must be compactory_mastered.WriteRules, not {directory.rules!r}"
    if directory.writable is True and (callable(directory.envelope) or directory.envelope in ("connect", "debezium")):
        yield f"writable and envelope={directory.envelope!r} exclude each other: a writer makes no envelopes"


def _callable_problems(directory: Any) -> Iterator[str]:
    if not callable(directory.decode) and get_origin(directory.decode) is None:
        yield f"decode must be a type or a callable that takes bytes, not {directory.decode!r}"
    if inspect.iscoroutinefunction(directory.decode):
        yield "decode must not be a coroutine function: nothing awaits it"
    projection = directory.projection
    if projection is not None and not callable(projection):
        yield f"projection must be a class or a callable without parameters, not {projection!r}"
    apply = getattr(projection, "apply", None)
    if isinstance(projection, type) and (not callable(apply) or inspect.iscoroutinefunction(apply)):
        yield f"projection {projection.__name__} needs a method apply(change), which is no coroutine function"


def _age_problems(directory: Any) -> Iterator[str]:
    if directory.on_stale not in get_args(OnStale):
        yield f"on_stale must be one of {', '.join(get_args(OnStale))}, not {directory.on_stale!r}"
    if directory.max_age is not None and not (isinstance(directory.max_age, int | float) and directory.max_age > 0):
        yield f"max_age must be a number of seconds above 0, not {directory.max_age!r}"


def _index_problems(directory: Any) -> Iterator[str]:
    for number, index in enumerate(directory.indexes):
        if not isinstance(index, Index):
            yield f"indexes must hold Index(…), not {index!r}"
        elif any(earlier.name == index.name for earlier in directory.indexes[:number] if isinstance(earlier, Index)):
            yield f"two indexes are called {index.name!r}; give one a name="
