"""What a directory may be."""

from __future__ import annotations

import pytest

from compactory import ConfigError, Directory


def test_writable_is_a_flag_and_leaves_no_room_for_an_envelope() -> None:
    assert Directory("t", writable=True).writable
    assert not Directory("t").writable
    with pytest.raises(ConfigError, match="must be True or False"):
        Directory("t", writable="yes")  # type: ignore[call-overload]
    with pytest.raises(ConfigError, match="exclude each other"):
        Directory("t", writable=True, envelope="debezium")
