"""``${provider:key}`` and ``${provider:path:key}`` in the values of a connector.

A placeholder is looked up in this order, the first that has it wins:

1. the .properties file of ``--provider NAME=FILE`` (it stands for the whole provider, whatever the path);
2. the environment: ``${tpp:reference-data.db.url}`` → ``TPP_REFERENCE_DATA_DB_URL`` (a path is left out);
3. ``config.providers.*`` of the connector, as in Kafka Connect (``FileConfigProvider``, ``EnvVarConfigProvider``,
   ``DirectoryConfigProvider``).

Values that were looked up may be secrets: no problem text ever shows one.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

from ..setting import names
from .config_file import parse_properties

__all__ = ["Placeholders", "environment_name", "has_placeholder"]

# As ConfigTransformer.DEFAULT_PATTERN in org.apache.kafka.common.config: provider, optional path, key.
_PLACEHOLDER = re.compile(r"\$\{([^}]*?):(?:([^}]*?):)?([^}]*?)\}")
_SHORT = 5
"""A value of at most so many letters may be part of any word."""
_NOT_A_NAME = re.compile(r"[^A-Za-z0-9]")

_KINDS = ("DirectoryConfigProvider", "EnvVarConfigProvider", "FileConfigProvider")


def has_placeholder(text: str) -> bool:
    """Return True if ``text`` has a placeholder."""
    return _PLACEHOLDER.search(text) is not None


def environment_name(provider: str, key: str) -> str:
    """Return the name of the environment variable for ``${provider:key}``."""
    return _NOT_A_NAME.sub("_", f"{provider}_{key}").upper()


class Placeholders:
    """The values of placeholders. Placeholders without a value are collected in ``problems``."""

    def __init__(self, files: Mapping[str, Path], environment: Mapping[str, str], settings: Mapping[str, str]) -> None:
        """``settings`` is the connector as written; only its ``config.providers*`` keys are read."""
        self.problems: list[str] = []
        self._placeholder_of: dict[str, str] = {}
        self._environment = environment
        self._files = {name: self._read(path, f"--provider {name}={path}") for name, path in files.items()}
        self._declared = self._declared_providers(settings)
        self._opened: dict[str, dict[str, str]] = {}

    def resolve(self, setting: str, text: str) -> str | None:
        """Return ``text`` with the values of its placeholders; None if one has none, which is a problem."""
        problem_count = len(self.problems)

        def value(match: re.Match[str]) -> str:
            provider, path, key = match[1], match[2], match[3]
            secret = self._look_up(provider, path, key)
            if secret is None:
                self.problems.append(self._unresolved(setting, match[0], provider, key))
                return ""
            if secret:
                self._placeholder_of[secret] = match[0]
            return secret

        resolved = _PLACEHOLDER.sub(value, text)
        return resolved if len(self.problems) == problem_count else None

    def hidden(self, text: str) -> str:
        """Return ``text`` with placeholders in place of their values; a short value counts as a whole word only."""
        for value, placeholder in sorted(self._placeholder_of.items(), key=lambda item: -len(item[0])):
            pattern = re.escape(value) if len(value) > _SHORT else rf"(?<!\w){re.escape(value)}(?!\w)"
            text = re.sub(pattern, placeholder.replace("\\", r"\\"), text)
        return text

    def _look_up(self, provider: str, path: str | None, key: str) -> str | None:
        if key in self._files.get(provider, {}):
            return self._files[provider][key]
        if (variable := environment_name(provider, key)) in self._environment:
            return self._environment[variable]
        kind, source = self._declared.get(provider, ("", ""))
        if kind == "EnvVarConfigProvider":
            return self._environment.get(key)
        if not kind or not path:
            return None
        if kind == "DirectoryConfigProvider":
            return self._content(Path(path), key, source)
        if path not in self._opened:
            self._opened[path] = self._read(Path(path), source)
        return self._opened[path].get(key)

    def _unresolved(self, setting: str, placeholder: str, provider: str, key: str) -> str:
        return (
            f"{setting}: nothing resolves {placeholder}; "
            f"give --provider {provider}=FILE.properties with a line {key}=…, "
            f"or set {environment_name(provider, key)} in the environment, "
            f"or declare config.providers={provider} with config.providers.{provider}.class"
        )

    def _read(self, path: Path, source: str) -> dict[str, str]:
        try:
            return parse_properties(self._text(path, source) or "")
        except ValueError as error:
            self.problems.append(f"{source}: {path}: {error}")
            return {}

    def _text(self, path: Path, source: str) -> str | None:
        try:
            return path.read_text(encoding="utf-8")
        except OSError as error:
            self.problems.append(f"{source}: can't read {path}: {error.strerror}")
        except UnicodeDecodeError:
            self.problems.append(f"{source}: {path} is not UTF-8 text")
        return None

    def _declared_providers(self, settings: Mapping[str, str]) -> dict[str, tuple[str, str]]:
        """Return the class of each provider that the connector declares, and the key that declares it."""
        declared: dict[str, tuple[str, str]] = {}
        for name in names(settings.get("config.providers", "")):
            key = f"config.providers.{name}.class"
            kind = settings.get(key, "").removeprefix("org.apache.kafka.common.config.provider.")
            if kind in _KINDS:
                declared[name] = kind, f"config.providers.{name}"
                continue
            written = f"{settings[key]} is not one" if key in settings else "it is missing"
            self.problems.append(
                f"{key}: must name one of {', '.join(_KINDS)} of org.apache.kafka.common.config.provider; {written}"
            )
        return declared

    def _content(self, folder: Path, key: str, source: str) -> str | None:
        """Return the text of the file ``key`` in a folder; None if there is no such file."""
        file = folder / key
        return self._text(file, source) if Path(key).name == key and file.is_file() else None
