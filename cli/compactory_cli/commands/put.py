"""``compactory put`` and ``delete``: write a directory mastered in Kafka, through a running server."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, Any

from ..context.flags import argument, flag, option
from ..context.session import begin, refuse
from ..views.terminal import answer, output, print_json, wants_json

if TYPE_CHECKING:
    from compactory_client import Entries

__all__ = ["delete", "put"]

Name = Annotated[str, argument("DIRECTORY", 'A directory with mastered = "kafka".')]
Key = Annotated[str, argument("KEY", "The entry's key.")]
IfMatch = Annotated[str | None, option("--if-match", "ETAG", "Write only if the entry has this ETag.")]


def put(
    directory: Name,
    key: Key,
    value: Annotated[str, argument("VALUE", "A JSON object; - reads it from standard input.")],
    merge: Annotated[bool, flag("--merge", "Merge VALUE into the entry (RFC 7396).")] = False,
    create: Annotated[bool, flag("--create", "Write only if the key has no entry.")] = False,
    if_match: IfMatch = None,
) -> None:
    """Create, replace or change an entry, through the server at COMPACTORY_URL.

    Example: `compactory put tenants t1 '{"email": "a@example.org"}' --create`
    """
    if merge and create:
        refuse("--merge needs an entry and --create needs that there is none: give one of them")
    document = _parse_document(sys.stdin.read() if value == "-" else value)
    with _entries(directory) as entries:
        if merge:
            stored = entries.patch(key, document, if_match=if_match)
        else:
            stored = entries.put(key, document, if_match=if_match, create=create)
    if wants_json():
        print_json({"key": stored.key, "value": stored.value, "etag": stored.etag, "offset": str(stored.token)})
    else:
        output().print_json(data=stored.value)


def delete(directory: Name, key: Key, if_match: IfMatch = None) -> None:
    """Remove an entry, through the server at COMPACTORY_URL.

    Example: `compactory delete tenants t1`
    """
    with _entries(directory) as entries:
        token = entries.delete(key, if_match=if_match)
    answer({"key": key, "offset": str(token)}, f"removed, at {token}")


def _parse_document(text: str) -> dict[str, Any]:
    try:
        document = json.loads(text)
    except (ValueError, RecursionError) as error:
        refuse(f"VALUE: is not JSON: {error}")
    if not isinstance(document, dict):
        refuse(f"VALUE: must be a JSON object, not {type(document).__name__}")
    return document


@contextmanager
def _entries(directory: str) -> Iterator[Entries[dict[str, Any]]]:
    from compactory_client import Client

    configuration = begin()
    if configuration.url is None:
        refuse("which server? only servers write: set COMPACTORY_URL, such as http://127.0.0.1:8080")
    tokens = configuration.tokens
    with Client(configuration.url, token=tokens.write or tokens.admin or tokens.read) as client:
        yield client.directory(directory)
