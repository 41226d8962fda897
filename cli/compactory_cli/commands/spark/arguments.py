"""Options of ``compactory spark``."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from ...context.flags import argument, flag, option
from ...context.loading import Providers
from ...context.session import refuse

if TYPE_CHECKING:
    from compactory_connectors.spark.session import SparkOptions

__all__ = ["Format", "LoadArguments", "SparkArguments"]

Format = Literal["parquet", "orc", "csv", "json"]


@dataclass(frozen=True, kw_only=True)
class SparkArguments:
    """Options of a Spark session."""

    master: Annotated[
        str | None,
        option(
            "--master",
            "MASTER",
            "Spark's master URL; default: local[*].",
        ),
    ] = None
    conf: Annotated[list[str] | None, option("--conf", "KEY=VALUE", "A property of Spark; may be repeated.")] = None
    jars: Annotated[
        Path | None,
        option(
            "--jars",
            "DIR",
            "Folder of JDBC drivers; else one is fetched.",
        ),
    ] = None

    def options(self) -> SparkOptions:
        """Return the options of a session. Raises ConfigError for a malformed --conf."""
        from compactory_connectors.spark.session import SparkOptions

        properties = {}
        for text in self.conf or ():
            name, equals, value = text.partition("=")
            if not name or not equals:
                refuse(f"--conf {text}: must be KEY=VALUE, such as spark.sql.shuffle.partitions=64")
            properties[name] = value
        return SparkOptions(master=self.master, conf=properties, jars=self.jars)


@dataclass(frozen=True, kw_only=True)
class LoadArguments:
    """Options of a load."""

    sources: Annotated[list[str], argument("SOURCE…", "Files, globs or folders; or a JDBC URL with --table.")]
    directory: Annotated[str, option("--directory", "NAME", "Directory, table or topic.")]
    to: Annotated[
        Literal["postgres", "kafka"],
        option("--to", help="Its table, or its topic."),
    ]
    rules: Annotated[
        Path | None,
        option("--rules", "FILE", "YAML file with the rules for columns."),
    ] = None
    mode: Annotated[
        Literal["upsert", "replace"],
        option("--mode", help="replace deactivates keys missing from the source."),
    ] = "upsert"
    dry_run: Annotated[bool, flag("--dry-run", "Show what would change; write only rejects.")] = False
    rejects: Annotated[str | None, option("--rejects", "DIR", "A folder for rejected rows.")] = None
    max_rejects: Annotated[
        str | None,
        option(
            "--max-rejects",
            "N|N%",
            "Most rejected rows; without --rejects none.",
        ),
    ] = None
    max_deactivate: Annotated[
        str | None,
        option("--max-deactivate", "N|N%", "Most missing keys; default: as the connector."),
    ] = None
    load_id: Annotated[
        str | None,
        option("--load-id", "ID", "Load into Postgres only once under this id."),
    ] = None
    report: Annotated[Path | None, option("--report", "FILE", "JSON report, also of a load that fails.")] = None
    format: Annotated[
        Format | None,
        option("--format", help="Of the files; default: by their names."),
    ] = None
    table: Annotated[str | None, option("--table", "TABLE", "The table behind a JDBC URL.")] = None
    provider: Providers = None
