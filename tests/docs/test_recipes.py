"""Each recipe runs as it is written; those that need servers of others are only read."""

from __future__ import annotations

import sys
from types import ModuleType

import pytest

from tests.docs.pages import Block, blocks


@pytest.mark.parametrize("block", blocks("python", run="recipe"), ids=lambda block: block.text.split("\n\n\n")[0][-40:])
def test_a_recipe(block: Block, monkeypatch: pytest.MonkeyPatch) -> None:
    recipe = ModuleType("recipe")
    monkeypatch.setitem(sys.modules, "recipe", recipe)  # classes look up their module there
    exec(compile(block.text, str(block.page), "exec"), vars(recipe))
