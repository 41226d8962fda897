"""Arguments for connector files, and loading them with the problems of all files at once."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial, wraps
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Concatenate, ParamSpec

from ..views.terminal import warn
from .flags import Flags, argument, command, option
from .session import Problems, refuse

if TYPE_CHECKING:
    from compactory_connectors.source.config.connector import ConnectorConfig

__all__ = ["Connector", "Connectors", "Providers", "connector_command", "load_connectors", "provider_files"]

P = ParamSpec("P")

Connector = Annotated[Path, argument("CONNECTOR.json", "A connector: JSON, or .properties.")]
Connectors = Annotated[
    list[Path], argument("CONNECTOR.json…", "Connectors: JSON files with one or several, or .properties.")
]
Providers = Annotated[
    list[str] | None,
    option("--provider", "NAME=FILE", "File with values for ${NAME:…}; may be repeated."),
]


def connector_command(function: Callable[Concatenate[Flags, P], None]) -> Callable[..., None]:
    """Like `command`, for commands on connectors: warn that --postgres does not name their database."""

    @wraps(function)
    def warned(flags: Flags, /, *arguments: P.args, **options: P.kwargs) -> None:
        if flags.postgres is not None:
            warn("--postgres is not used: a source connects to connection.url of its connector")
        function(flags, *arguments, **options)

    return command(warned)


def load_connectors(paths: Iterable[Path], providers: Sequence[str]) -> list[ConnectorConfig]:
    """Return the connectors of these files. Raises ConfigError with the problems of all."""
    paths = list(paths)
    if not paths:
        return []  # without the slow import below
    from compactory_connectors.source.config import files as files_of

    problems = Problems()
    files = problems.of(partial(provider_files, providers)) or {}
    connectors_of_files = [problems.of(partial(files_of.load_connectors, path, files)) or [] for path in paths]
    loaded = [connector for connectors in connectors_of_files for connector in connectors]
    names = [connector.name for connector in loaded]
    twice = sorted({name for name in names if names.count(name) > 1})
    problems.add(f"two connectors are named {name!r}: each would stop the other; rename one" for name in twice)
    problems.raise_any()
    return loaded


def provider_files(providers: Sequence[str]) -> dict[str, Path]:
    """Return the files of ``--provider NAME=FILE`` by name. Raises ConfigError."""
    files: dict[str, Path] = {}
    for text in providers:
        name, equals, path = text.partition("=")
        if not name or not equals or not path:
            refuse(f"--provider {text}: must be NAME=FILE, such as tpp=secrets.properties")
        files[name] = Path(path)
    return files
