"""What a directory may be."""

from __future__ import annotations

import pytest

from compactory import ConfigError, Directory, Index, Memory


def test_writable_is_a_flag_and_leaves_no_room_for_an_envelope() -> None:
    assert Directory("t", writable=True).writable
    assert not Directory("t").writable
    with pytest.raises(ConfigError, match="must be True or False"):
        Directory("t", writable="yes")  # type: ignore[call-overload]
    with pytest.raises(ConfigError, match="exclude each other"):
        Directory("t", writable=True, envelope="debezium")


class Applied:
    async def apply(self, change: object) -> None: ...


@pytest.mark.parametrize(
    "options",
    [
        {"name": ""},
        {"name": "a/b"},
        {"topic": ""},
        {"topic": "a b"},
        {"topic": ".."},
        {"topic": "a\0"},
        {"key": ""},
        {"active": 5},
        {"indexes": 5},
        {"indexes": Index("a")},
        {"indexes": "ab"},
        {"indexes": [Index("a"), Index("a")]},
        {"decode": None},
        {"decode": Applied.apply},
        {"envelope": "avro"},
        {"cache_decoded": "yes"},
        {"keep_changes": 1},
        {"max_age": 0},
        {"on_stale": "ignore"},
        {"rules": {}},
        {"projection": 5},
        {"projection": dict},
        {"projection": Applied},
    ],
)
def test_bad_options_are_refused(options: dict[str, object]) -> None:
    given = {"name": "d", **options}
    with pytest.raises(ConfigError, match=f"directory {given['name']!r}: .*"):
        Directory(**given)  # type: ignore[call-overload]


@pytest.mark.parametrize(
    ("fields", "options"),
    [((), {}), (("",), {}), ((5,), {}), (("a", "a"), {}), (("a",), {"unique": "no"}), (("a",), {"name": ""})],
)
def test_a_bad_index_is_refused(fields: tuple[str, ...], options: dict[str, object]) -> None:
    with pytest.raises(ConfigError, match=r"^Index\("):
        Index(*fields, **options)  # type: ignore[arg-type]


@pytest.mark.parametrize("options", [{"path": ""}, {"save_every": 0}, {"save_every": "often"}])
def test_a_memory_backend_refuses_bad_options(options: dict[str, object]) -> None:
    [name] = options
    with pytest.raises(ConfigError, match=name):
        Memory(**options)  # type: ignore[arg-type]
