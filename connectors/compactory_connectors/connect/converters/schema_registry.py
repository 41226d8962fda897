"""A Confluent Schema Registry for the converters with ``schema.registry.url``: it gives the id of a schema.

No other module imports confluent-kafka's registry client, and it is imported only for a converter that needs it (the
extra ``schema-registry``). Options and subject names are those of ``AbstractKafkaSchemaSerDeConfig``.
"""

from __future__ import annotations

import struct
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from enum import Enum
from functools import lru_cache
from typing import Any, Self

from compactory.errors import ConfigError, Unreachable, extra_remedy

from ..setting import Setting, boolean, honoured, one_of
from .converter import SCHEMAS_ENABLE, Converter, Half

__all__ = ["OPTIONS", "Registry", "RegistryConverter", "Subjects"]

_STRATEGIES = "io.confluent.kafka.serializers.subject."
_SECONDS = 3
"""The timeout of connection, request and answer; a Postgres snapshot and other tables wait meanwhile."""
_PAUSE = 5.0
"""Seconds for which a registry that did not answer is not asked again by any table."""
_SILENT_UNTIL: dict[str | tuple[str, str], float] = {}
"""The times of the monotonic clock until which a registry that did not answer, or its subject, is not asked."""
_NOT_FOUND = 404  # the registry's own codes have two more digits; 404 alone is that of a wrong address
_NO_ANSWER = (ValueError, TypeError, AttributeError)  # the client's errors for an answer that is no registry's
_SCHEMES = ("http://", "https://", "mock://")


class Subjects(Enum):
    """The strategy that names the subject of a schema."""

    TOPIC = "TopicNameStrategy"
    RECORD = "RecordNameStrategy"
    TOPIC_RECORD = "TopicRecordNameStrategy"


def _strategy(value: str) -> Subjects:
    names = {f"{_STRATEGIES}{item.value}": item for item in Subjects}
    if value not in names:
        raise ValueError(f"must be one of {', '.join(names)}")
    return names[value]


def _addresses(value: str) -> str:
    if value and not all(address.strip().startswith(_SCHEMES) for address in value.split(",")):
        raise ValueError("every address must begin with http:// or https://")
    return value


def _pem_file(value: str) -> str:
    if value.lower().endswith((".jks", ".p12", ".pfx", ".keystore", ".truststore")):
        raise ValueError("must be a PEM file: a Java key store can't be read; convert it (keytool -exportcert -rfc)")
    return value


_PEM = one_of("PEM", otherwise="a Java key store can't be read; convert it to PEM")
_SOURCE = one_of("URL", "USER_INFO", otherwise="give basic.auth.user.info")
_BY_TOPIC = f"{_STRATEGIES}{Subjects.TOPIC.value}"
_NO_PASSWORD = "a Java key store's; PEM has none"  # noqa: S105  # a meaning
_MOOT = "no effect here"

OPTIONS: tuple[Setting, ...] = (
    honoured("schema.registry.url", "addresses of the registry, separated by commas", "", _addresses, secret=True),
    honoured("basic.auth.credentials.source", "where the login comes from", "URL", _SOURCE),
    honoured("basic.auth.user.info", "user:password", "", secret=True),
    honoured("schema.registry.basic.auth.user.info", "older name of it", "", secret=True),
    honoured("schema.registry.ssl.truststore.location", "PEM file of the authorities that are trusted", "", _pem_file),
    honoured("schema.registry.ssl.truststore.type", "its format", "PEM", _PEM),
    honoured("schema.registry.ssl.keystore.location", "PEM file of the client's certificate and key", "", _pem_file),
    honoured("schema.registry.ssl.keystore.type", "its format", "PEM", _PEM),
    honoured("schema.registry.ssl.key.password", "of the key", "", secret=True),
    honoured("auto.register.schemas", "register schemas", "true", boolean),
    honoured("use.latest.version", "take the subject's newest schema, which must be written alike", "false", boolean),
    honoured("normalize.schemas", "let the registry normalise schemas", "false", boolean),
    honoured("key.subject.name.strategy", "names the subject of keys", _BY_TOPIC, _strategy),
    honoured("value.subject.name.strategy", "names the subject of values", _BY_TOPIC, _strategy),
    honoured("schema.registry.ssl.truststore.password", _NO_PASSWORD, "", secret=True),
    honoured("schema.registry.ssl.keystore.password", _NO_PASSWORD, "", secret=True),
    SCHEMAS_ENABLE,
    honoured("schemas.cache.config", _MOOT, "1000"),
    honoured("max.schemas.per.subject", _MOOT, "1000"),
    honoured("latest.compatibility.strict", _MOOT, "true"),
    honoured("id.compatibility.strict", _MOOT, "true"),
)
"""Options of every converter that uses a registry."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Registry:
    """A registry, and what a converter may do there. Immutable; its client is shared and thread-safe."""

    url: str
    client: tuple[tuple[str, str], ...] = ()
    """Other properties of the registry's client."""
    register: bool = True
    latest: bool = False
    normalize: bool = False
    strategies: Mapping[str, Subjects]
    dry: bool = False
    """True: nothing is registered, and a schema that is not there yet has the id 0."""

    def __repr__(self) -> str:
        return "Registry(…)"  # address and properties may hold a password

    @classmethod
    def read(cls, options: Mapping[str, Any]) -> Self:
        """Return the registry of these options. Raises ValueError for missing or contradictory ones."""
        if not options["schema.registry.url"]:
            raise ValueError("schema.registry.url: missing; give the address of the Schema Registry")
        login = options["basic.auth.user.info"] or options["schema.registry.basic.auth.user.info"]
        if options["basic.auth.credentials.source"] == "USER_INFO" and ":" not in login:
            raise ValueError("basic.auth.user.info: missing; write user:password, or placeholders of them")
        if options["use.latest.version"] and options["auto.register.schemas"]:
            raise ValueError("use.latest.version: has an effect only with auto.register.schemas=false; set that too")
        client = {
            "basic.auth.user.info": login if options["basic.auth.credentials.source"] == "USER_INFO" else "",
            "ssl.ca.location": options["schema.registry.ssl.truststore.location"],
            "ssl.certificate.location": options["schema.registry.ssl.keystore.location"],
            "ssl.key.password": options["schema.registry.ssl.key.password"],
        }
        return cls(
            url=options["schema.registry.url"],
            client=tuple((name, value) for name, value in client.items() if value),
            register=options["auto.register.schemas"],
            latest=options["use.latest.version"],
            normalize=options["normalize.schemas"],
            strategies={half: options[f"{half}.subject.name.strategy"] for half in ("key", "value")},
        )

    def schema_id(self, name: str, schema: str, kind: str, alike: Callable[[str], bool]) -> int:
        """Return the registry's id of a schema of ``kind`` (AVRO, JSON) under the subject ``name``.

        ``alike`` is True for a schema under which records have the same bytes, for ``use.latest.version``.
        Raises ConfigError if the registry refuses or lacks the schema, Unreachable if it does not answer.
        """
        client = _client(self._properties())
        from confluent_kafka.schema_registry import Schema

        if self.latest:
            newest = self._ask(lambda: client.get_latest_version(name), name)
            if not alike(newest.schema.schema_str):
                raise ConfigError(
                    f"Schema Registry: subject {name}: version {newest.version} is not how this table's records are"
                    " written; register its schema, or set use.latest.version=false"
                )
            return int(newest.schema_id)
        document = Schema(schema, kind)
        if self.register and not self.dry:
            number: int = self._ask(lambda: int(client.register_schema(name, document, self.normalize)), name)
            return number
        registered = self._ask(lambda: client.lookup_schema(name, document, self.normalize), name, missing=self.dry)
        return int(registered.schema_id) if registered else 0

    def schema_text(self, number: int) -> str | None:
        """Return the schema of an id; None if the registry has none. Raises as :meth:`schema_id`."""
        client = _client(self._properties())
        registered = self._ask(lambda: client.get_schema(number), f"of schema {number}", missing=True)
        return registered and str(registered.schema_str)

    def _ask(self, request: Callable[[], Any], subject: str, *, missing: bool = False) -> Any:
        """Return the registry's answer; with ``missing`` a schema that the registry lacks is None, and no error."""
        from confluent_kafka.schema_registry import SchemaRegistryError

        began = time.monotonic()
        if began < max(_SILENT_UNTIL.get(target, 0.0) for target in (self.url, (self.url, subject))):
            raise Unreachable(
                "Schema Registry", f"Schema Registry did not answer within {_SECONDS} s; asked again soon"
            )
        try:
            return request()
        except SchemaRegistryError as error:
            if missing and error.error_code // 100 == _NOT_FOUND:
                return None
            if error.http_status_code >= 500 or error.http_status_code == 429:
                raise Unreachable("Schema Registry", f"Schema Registry: subject {subject}: {error}") from error
            raise ConfigError(f"Schema Registry: subject {subject}: {_refusal(error)}") from error
        except Exception as error:  # the HTTP library's own errors: no connection, no TLS, no answer in time
            if time.monotonic() - began > _SECONDS / 2:
                _SILENT_UNTIL[self.url] = time.monotonic() + _PAUSE
                _SILENT_UNTIL[self.url, subject] = time.monotonic() + 4 * _PAUSE  # other subjects are asked earlier
            reason = "another program answers there" if isinstance(error, _NO_ANSWER) else type(error).__name__
            raise Unreachable("Schema Registry", f"Schema Registry was not reached: {reason}") from error

    def _properties(self) -> tuple[tuple[str, Any], ...]:
        return ("url", self.url), ("timeout", _SECONDS), ("max.retries", 0), *self.client


@dataclass(frozen=True, slots=True)
class RegistryConverter(Converter):
    """A converter whose schemas a registry keeps, by topic and half."""

    registry: Registry
    topic: str = field(default="", kw_only=True)
    half: Half = field(default="value", kw_only=True)

    def at(self, topic: str, half: Half) -> Self:
        return replace(self, topic=topic, half=half)

    def dry(self) -> Self:
        return replace(self, registry=replace(self.registry, dry=True))

    def frame(self, schema: str, kind: str, alike: Callable[[str], bool], record: str | None) -> Callable[[], bytes]:
        """Return the function of the bytes before each value, zero and the schema's id. It asks for the id once.

        ``record`` is the name of the record, if the schema is one. Raises ValueError if a strategy needs it.
        """
        subject = self._subject(record)
        frames: list[bytes] = []

        def frame() -> bytes:
            if not frames:
                frames.append(struct.pack(">bI", 0, self.registry.schema_id(subject, schema, kind, alike)))
            return frames[0]

        return frame

    def _subject(self, record: str | None) -> str:
        strategy = self.registry.strategies[self.half]
        if strategy is Subjects.TOPIC:
            return f"{self.topic}-{self.half}"
        if record is None:
            raise ValueError(f"{strategy.value} names schemas after records, and the {self.half} is none")
        return record if strategy is Subjects.RECORD else f"{self.topic}-{record}"


_REMEDIES = {
    401: "the login was refused; check basic.auth.user.info",
    403: "the login has no right to it; grant it read and, with auto.register.schemas=true, write",
    404: "is not registered; register the schema, or set auto.register.schemas=true",
    409: "the schema is not compatible with what is registered; change the subject's compatibility, or its schema",
}


def _refusal(error: Any) -> str:
    remedy = _REMEDIES.get(error.http_status_code)
    return f"{error.error_message}; {remedy}" if remedy else str(error)


@lru_cache(maxsize=16)
def _client(properties: tuple[tuple[str, Any], ...]) -> Any:
    try:
        from confluent_kafka.schema_registry import SchemaRegistryClient
    except ImportError:
        raise ConfigError(f"the extra schema-registry is not installed: {extra_remedy('schema-registry')}") from None
    try:
        return SchemaRegistryClient.new_client(dict(properties))
    except (ValueError, OSError) as error:  # its text repeats the address, which may hold a password
        raise ConfigError(
            f"the client of the Schema Registry can't be made ({type(error).__name__}): check schema.registry.url and"
            " schema.registry.ssl.*"
        ) from error
