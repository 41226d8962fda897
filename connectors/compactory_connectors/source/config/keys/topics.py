"""Keys about topics, producers and transactions."""

from __future__ import annotations

from ...setting import Setting, at_least, boolean, honoured, moot, names, one_of, refused, switch
from ..topic_rules import topic_prefix

__all__ = ["KEYS"]

KEYS: tuple[Setting, ...] = (
    honoured("topic.prefix", "the topic of a table is this and the table's name", None, topic_prefix),
    honoured("topic.creation.enable", "create topics that are missing", "true", boolean),
    honoured(
        "topic.creation.default.partitions",
        "partitions of a new topic; -1: the broker's default",
        "-1",
        at_least(1, also=-1),
    ),
    honoured(
        "topic.creation.default.replication.factor",
        "replicas of a new topic; -1: the broker's default",
        "-1",
        at_least(1, also=-1),
    ),
    honoured("topic.creation.default.*", "configuration of a new topic, such as min.insync.replicas"),
    honoured("topic.creation.groups", "groups of topics with a configuration of their own", "", names),
    honoured("topic.creation.*", "include, exclude (regular expressions of topics), partitions … of a group"),
    honoured("producer.override.*", "producer properties by their Java names, or librdkafka's"),
    refused("consumer.override.*", "consumer properties", "a source consumes nothing; leave it out"),
    refused(
        "admin.override.*", "admin client properties", "one client serves all; give them in [kafka] of compactory.toml"
    ),
    honoured(
        "exactly.once.support",
        "whether exactly once is required",
        "requested",
        one_of("requested", "required", otherwise="for at-least-once set compactory.transactions=off"),
    ),
    moot(
        "transaction.boundary",
        "when transactions end",
        "a transaction ends after a batch",
        one_of("poll", otherwise="only poll"),
    ),
    refused("transaction.boundary.interval.ms", "time between commits", "transactions end after a batch; leave it out"),
    refused(
        "offsets.storage.topic", "topic of this connector's offsets", "offsets are in compactory-offsets; leave it out"
    ),
    honoured("compactory.transactions", "records and offset in one Kafka transaction; `off`: see below", "on", switch),
)
