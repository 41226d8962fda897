"""Connects commands to the database and grants rights to roles. Errors do not show the password."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from typing import TYPE_CHECKING, Any, LiteralString

from ..views.terminal import print_json, say
from .flags import Flags
from .session import begin

if TYPE_CHECKING:
    import psycopg

__all__ = ["connected", "give_roles"]


@contextmanager
def connected(
    flags: Flags, connect: Callable[[Mapping[str, Any], str], psycopg.Connection[Any]] | None = None
) -> Iterator[psycopg.Connection[Any]]:
    """Yield a connection in autocommit to the configured database, opened by ``connect`` if given."""
    from compactory_connectors.postgres.postgres_errors import postgres_errors

    postgres = begin(flags).postgres()
    with postgres_errors(postgres), closing((connect or _connect)(postgres.conninfo, "command")) as connection:
        yield connection


def give_roles(
    flags: Flags,
    plan: Callable[[psycopg.Connection[Any]], tuple[LiteralString, ...]],
    roles: Sequence[str],
    *,
    only_print: bool,
    **shown: object,
) -> None:
    """Run the statements of a plan for roles, or with ``only_print`` print them. ``shown`` is added to the JSON."""
    from compactory_connectors.schema import grant

    with connected(flags) as connection:
        texts = plan(connection)
        if not only_print:
            grant(connection, texts)
    if flags.json:
        print_json({**shown, "sql": list(texts)})
    elif only_print:
        print("".join(f"{text};\n" for text in texts), end="")
    else:
        *first_roles, last = roles
        named = f"{', '.join(first_roles)} and {last} have their" if first_roles else f"{last} has its"
        say(f"[green]✓[/] {named} rights")


def _connect(conninfo: Mapping[str, Any], _purpose: str) -> psycopg.Connection[Any]:
    import psycopg

    parameters: dict[str, Any] = {"connect_timeout": 10, "application_name": "compactory-sql", **conninfo}
    return psycopg.connect(**parameters, autocommit=True)
