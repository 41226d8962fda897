"""``compactory source``: runs connectors, or shows what they would send.

As in all commands, slow imports are inside functions, so that --help answers at once.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Annotated

from ..context.flags import App, LogLevel, flag
from ..context.loading import Connectors, Providers, begin_source, load_connectors
from ..context.session import Problems, all_of
from ..context.worker import ListenOption, health_on
from . import source_control, source_offsets

__all__ = ["app"]

app = App(
    name="source",
    help="Poll Postgres tables into compacted topics, as a Kafka Connect JDBC source connector describes it.",
)

app.add_typer(source_offsets.app)
app.command("status")(source_control.show_source_status)
app.command("pause")(source_control.pause)
app.command("resume")(source_control.resume)
app.command("restart")(source_control.restart)
app.command("approve")(source_control.approve)


@app.command("run")
def run_connectors(
    connectors: Connectors,
    once: Annotated[bool, flag("--once", "Publish what is committed by now, then end.")] = False,
    dry_run: Annotated[bool, flag("--dry-run", "Show the first records; write nothing.")] = False,
    provider: Providers = None,
    no_create_topics: Annotated[bool, flag("--no-create-topics", "Create no topic; fail if one is missing.")] = False,
    listen: ListenOption = None,
) -> None:
    """Publish every committed change of the connectors' tables until SIGTERM or Ctrl-C.

    Example: `compactory source run tenants.json --provider tpp=secrets.properties --listen 0.0.0.0:8081`
    """
    if dry_run:
        begin_source()
        _show_previews(connectors, provider, records=True)
        return
    configuration = begin_source(LogLevel.INFO)
    loaded, kafka, health = all_of(
        partial(load_connectors, connectors, provider or ()),
        configuration.kafka,
        partial(health_on, configuration, listen),
    )
    from .workers import run_sources

    run_sources(loaded, kafka, once=once, create_topics=not no_create_topics, health=health)


@app.command("validate")
def validate(connectors: Connectors, provider: Providers = None) -> None:
    """Check connectors against their databases; show topic, key, fields and SQL of every table.

    Example: `compactory source validate tenants.json`
    """
    begin_source()
    _show_previews(connectors, provider, records=False)


def _show_previews(connectors: list[Path], provider: list[str] | None, *, records: bool) -> None:
    from compactory_connectors.source.operations.preview import preview_connector

    from ..views.preview import show_previews

    loaded = load_connectors(connectors, provider or ())
    problems = Problems()
    previews = [(config, problems.of(partial(preview_connector, config))) for config in loaded]
    problems.raise_any()
    show_previews([(config, preview) for config, preview in previews if preview is not None], records=records)
