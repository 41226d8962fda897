"""Names and texts as Spark's SQL has them."""

from __future__ import annotations

__all__ = ["literal", "quoted"]


def quoted(name: str) -> str:
    """The name within backticks, so that a dot in it, say, does not reach into a struct."""
    return "`" + name.replace("`", "``") + "`"


def literal(text: str) -> str:
    """The text within quotes. A dollar is escaped, because Spark puts in variables for ``${name}``."""
    escaped = text.replace("\\", "\\\\").replace("'", "\\'").replace("$", "\\u0024")
    return f"'{escaped}'"
