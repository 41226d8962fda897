"""``compactory sql``: installs the schema of Compactory in a database and adopts tables."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from ..context.flags import App, argument, flag, option
from ..context.session import begin, confirm, connected, refuse
from ..views.tables import Column, Table, bold, document, print_lines, print_tables
from ..views.terminal import escape, fields, marked, print_json, say, wants_json, write
from .operators import Yes

if TYPE_CHECKING:
    from typing import LiteralString

    import psycopg

    from compactory_connectors.schema import Adoption, Plan, Status

__all__ = ["app"]

_MIGRATIONS = (
    Column("migration", None, "version", right=True),
    Column("name"),
    Column("applied", None, lambda m: f"{m.applied_at:%Y-%m-%d %H:%M:%S %Z}" if m.applied_at else "pending"),
)
_TABLES = (
    Column("table", bold),
    Column("key", None, lambda item: ", ".join(item.adoption.key) if item.adoption else None),
    Column("active", None, lambda item: item.adoption.active if item.adoption else None),
    Column("adopted", lambda is_adopted: marked("green", "yes") if is_adopted else marked("red", "no")),
    Column("wakes the source", lambda notifies: "yes" if notifies else "no", "notify"),
)

_ROLES = {
    "source": {"owner": "compactory_owner", "source": "compactory_source", "writer": "compactory_writer"},
    "outbox": {"publisher": "compactory_publisher", "relay": "compactory_relay"},
    "jobs": {"enqueuer": "compactory_enqueuer", "executor": "compactory_executor"},
    "sink": {"sink": "compactory_sink"},
}
"""The kinds of roles of each part, with their names."""

OnlyPrint = Annotated[bool, flag("--print", "Print the SQL; change nothing.")]

app = App(name="sql", help="Migrations, adoption of live tables, and roles.")


@app.command("install")
def install_schema() -> None:
    """Apply the migrations of schema compactory that the database lacks.

    Example: `compactory sql install --postgres postgresql://user@localhost/reference`
    """
    from compactory_connectors import schema

    with connected() as connection:
        applied = schema.install(connection)
    print_lines(
        "applied",
        applied,
        lambda item: f"[green]✓[/] applied migration {item.version}: {item.name}",
        "nothing to do: every migration has been applied",
        lambda item: fields(item, "version", "name"),
    )


@app.command("status")
def show_sql_status() -> None:
    """Show migrations and adopted tables; exit code 1 if something is pending or wrong.

    Example: `compactory sql status`
    """
    from compactory_connectors import schema

    with connected() as connection:
        current = schema.status(connection)
    print_tables(
        Table("migrations", current.migrations, _MIGRATIONS),
        Table("tables", current.tables, _TABLES, "no table is adopted"),
        healthy=current.healthy,
    )
    if not wants_json():
        _print_remedies(current)
    if not current.healthy:
        raise typer.Exit(1)


@app.command("adopt")
def adopt(
    name: Annotated[str, argument("TABLE", "The table, with or without schema.")],
    key: Annotated[str, option("--key", "COL[,COL]", "Columns of the record key; no UPDATE may change them.")],
    active: Annotated[str | None, option("--active", "COL", "A boolean column: false means deleted.")] = None,
    allow_deletes: Annotated[bool, flag("--allow-deletes", "The application may delete active rows too.")] = False,
    timestamp: Annotated[str, option("--timestamp", "COL", "The timestamp that updates set.")] = "updated_date",
    incrementing: Annotated[str, option("--id", "COL", "The incrementing column.")] = "id",
    no_notify: Annotated[bool, flag("--no-notify", "Never wake the source; PREPARE TRANSACTION needs this.")] = False,
    only_print: OnlyPrint = False,
    yes: Yes = False,
) -> None:
    """Add a column, triggers and indexes to a live table, for cheap polls and visible deletions. May be run again.

    Afterwards Postgres refuses some changes to the application: an UPDATE of the columns of --key and --id, and a
    second row with the same key. With --active: a second active row with the same key, and a DELETE of an active row.
    The option --allow-deletes allows that DELETE.

    Example: `compactory sql adopt tenants --key code --active is_active`
    """
    from compactory_connectors import schema

    columns = tuple(filter(None, (column.strip() for column in key.split(","))))
    if not columns:
        refuse("--key: name at least one column")
    adoption = schema.Adoption(
        table=name,
        key=columns,
        active=active,
        allow_deletes=allow_deletes,
        timestamp=timestamp,
        id=incrementing,
        notify=not no_notify,
    )
    with connected() as connection:
        if only_print:
            _print_script(schema.plan(connection, adoption))
        else:
            _adopt(connection, adoption, yes=yes)


@app.command("roles")
def create_roles(
    tables: Annotated[
        list[str] | None, argument("[TABLE]…", "Tables that the source polls, or that the sink writes.")
    ] = None,
    part: Annotated[
        Literal["source", "outbox", "jobs", "sink"], option("--for", help="The part that the roles are for.")
    ] = "source",
    role: Annotated[
        list[str] | None, option("--role", "KIND=NAME", "Another name for a role, such as writer=app; repeatable.")
    ] = None,
    only_print: OnlyPrint = False,
) -> None:
    """Create a database role for each component of a part, with only its rights. May be run again.

    The kinds are owner, source and writer; publisher and relay; enqueuer and executor; sink. Run it for a source before
    install, and again after adopt.

    Example: `compactory sql roles tenants --role writer=app --print`
    """
    from compactory_connectors import schema

    names = dict(_ROLES[part])
    for text in role or ():
        kind, _, name = text.partition("=")
        if kind not in names or not name:
            refuse(f"--role {text}: must be KIND=NAME; the kinds of {part} are {', '.join(names)}")
        names[kind] = name
    if (part == "source" and not tables) or (part in {"outbox", "jobs"} and tables):
        refuse("name the tables that the source polls" if part == "source" else f"roles for {part} are for no tables")
    plans: dict[str, Callable[[psycopg.Connection[Any]], tuple[LiteralString, ...]]] = {
        "source": lambda connection: schema.plan_grants(connection, tables or (), schema.Roles(**names)),
        "outbox": lambda connection: schema.plan_outbox_grants(connection, **names),
        "jobs": lambda connection: schema.plan_jobs_grants(connection, **names),
        "sink": lambda connection: schema.plan_sink_grants(connection, names["sink"], tables or ()),
    }
    with connected() as connection:
        statements = plans[part](connection)
        if not only_print:
            schema.grant(connection, statements)
    if wants_json():
        print_json({"sql": list(statements)})
    elif only_print:
        print("".join(f"{statement};\n" for statement in statements), end="")
    else:
        for name in names.values():
            say(f"[green]✓[/] {escape(name)} has its rights")


@app.command("prune")
def prune(
    days: Annotated[float, option("--older-than", "DAYS", "Keep deletions of the last DAYS days.", min=0)] = 7.0,
    dry_run: Annotated[bool, flag("--dry-run", "Count; remove nothing.")] = False,
) -> None:
    """Remove logged deletions that every connector of the Kafka cluster has published. For a daily job of the owner.

    Example: `compactory sql prune --older-than 30 --dry-run`
    """
    from datetime import timedelta

    from compactory_connectors.source.offsets.stored_offsets import read_offsets
    from compactory_connectors.source.operations.pruning import prune as remove

    offsets = read_offsets(begin().kafka())
    with connected() as connection:
        tables = remove(connection, offsets, timedelta(days=days), dry_run=dry_run)
    verb = "could go" if dry_run else "removed"
    print_lines(
        "tables",
        tables,
        lambda item: f"{item.table}: " + (f"kept: {item.problem}" if item.problem else f"{item.removed:,} {verb}"),
        "nothing to do: no deletion is logged",
        dry_run=dry_run,
    )


def _adopt(connection: psycopg.Connection[Any], adoption: Adoption, *, yes: bool) -> None:
    from compactory_connectors import schema

    def progress(text: str) -> None:
        if not wants_json():
            say(f"  [dim]•[/] {escape(text)}")

    def announce(plan: Plan) -> None:
        if not plan.steps or wants_json():
            return
        say(f"From now on Postgres refuses on {escape(plan.table)}:")
        for change in plan.refused_changes:
            say(f"  [yellow]![/] {escape(change)}")
        if not yes:
            confirm("Adopt it?")

    steps = schema.adopt(connection, adoption, progress, confirm=announce)
    inspection = schema.inspect(connection, adoption.table)
    if wants_json():
        refused = {"refused": list(adoption.refused_changes)}
        print_json({"steps": [step.title for step in steps]} | document(inspection) | refused)
        return
    text = "is adopted" if steps else "was adopted already: nothing to do"
    say(f"[green]✓[/] {escape(inspection.table)} {text}")
    for problem in inspection.problems:
        say(f"  [yellow]![/] {escape(problem)}")


def _print_script(plan: Plan) -> None:
    script = plan.script()
    if wants_json():
        print_json({"table": plan.table, "steps": [step.title for step in plan.steps], "sql": script})
    else:
        print(script, end="")


def _print_remedies(current: Status) -> None:
    if not all(m.applied_at for m in current.migrations):
        write("migrations are pending; apply them with: compactory sql install")
    for item in current.tables:
        for problem in item.problems:
            say(f"[red]![/] {escape(problem)}")
        if item.remedy:
            say(f"  repair it with: [cyan]{escape(item.remedy)}[/]")
