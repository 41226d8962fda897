"""The options of a store: as keyword arguments and as a value."""

from __future__ import annotations

from typing import get_type_hints

import pytest

from compactory import GlobalStore, StoreOptions
from compactory.options import StoreArguments


def test_keyword_arguments_are_the_options() -> None:
    """Type checkers see the names and types that the options have."""
    assert get_type_hints(StoreArguments) == get_type_hints(StoreOptions)
    assert GlobalStore("127.0.0.1:1", ["d"]).options == StoreOptions()
    assert GlobalStore("127.0.0.1:1", ["d"], stall_timeout=3).options == StoreOptions(stall_timeout=3)
    with pytest.raises(TypeError, match="stal_timeout"):
        GlobalStore("127.0.0.1:1", ["d"], stal_timeout=3)  # type: ignore[call-arg]
