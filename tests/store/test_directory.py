"""What a directory may be."""

from __future__ import annotations

import pytest

from compactory import ConfigError, Directory


def test_writable_directories_are_refused_in_this_version() -> None:
    assert not Directory("t", writable=False).writable
    with pytest.raises(ConfigError, match="this version has not"):
        Directory("t", writable=True)
