"""Every option of Spark's Kafka connector, and what takes its place.

An option that isolog does not have is refused with its remedy; the table of docs/kafka.md is made
from the same rows.
"""

from __future__ import annotations

from typing import Final

from msgspec import Struct

_NOTHING: Final = "leave it out: nothing is needed instead"
_NO_GROUPS: Final = (
    "leave it out: a query is in no consumer group, its offsets are in its checkpoint"
)
_BATCHES: Final = "in batch queries only, as with Kafka"
_SECURITY: Final = "use tls.ca, tls.cert, tls.key"
_WHO: Final = "use user and password, or token"


class KafkaOption(Struct, frozen=True):
    """An option of the Kafka connector, or a family of them (``kafka.ssl.*``).

    ``side`` is ``source``, ``sink`` or ``both``; ``ours`` are the options that take its place,
    which may have its name. ``remedy`` is what to do with a name that isolog does not have.
    """

    name: str
    side: str
    default: str
    ours: tuple[str, ...] = ()
    differs: str = ""
    remedy: str = ""

    def shown(self, given: str) -> str:
        """Return the option's name as Kafka spells it; Spark gives it in lower case."""
        return given if self.name.endswith("*") else self.name

    def covers(self, name: str) -> bool:
        """Return whether it is this option, or one of this family, in any case of the letters."""
        prefix = self.name.removesuffix("*").lower()
        return (
            name.lower().startswith(prefix) if self.name.endswith("*") else name.lower() == prefix
        )


def _same(name: str, side: str, default: str, differs: str = "") -> KafkaOption:
    return KafkaOption(name, side, default, (name,), differs)


# Options of a family that have a row of their own come before the family.
KAFKAS: Final = (
    KafkaOption(
        "kafka.bootstrap.servers",
        "both",
        "-",
        ("bootstrap", "path"),
        "`path` instead needs no broker that was started before",
        "use bootstrap",
    ),
    _same("subscribe", "source", "-"),
    _same("subscribePattern", "source", "-", "a regular expression of Python, not of Java"),
    _same("assign", "source", "-"),
    _same(
        "startingOffsets",
        "source",
        "`latest`; in a batch query `earliest`",
        "the default is `earliest` in both; offsets count records only, so a number of Kafka's"
        " means another record",
    ),
    _same("startingTimestamp", "source", "-", "wins over `startingOffsets`, as with Kafka"),
    _same("startingOffsetsByTimestamp", "source", "-"),
    KafkaOption(
        "startingOffsetsByTimestampStrategy",
        "source",
        "`error`",
        (),
        "where no record is at or after the time, the query starts at the end",
        "leave it out: where no record is at or after the time, the query starts at the end",
    ),
    _same("endingOffsets", "source", "`latest`", _BATCHES),
    _same("endingTimestamp", "source", "-", _BATCHES),
    _same("endingOffsetsByTimestamp", "source", "-", _BATCHES),
    _same("failOnDataLoss", "source", "`true`", "the message names topic, partition and range"),
    _same(
        "maxOffsetsPerTrigger",
        "source",
        "-",
        "Kafka's counts the markers of transactions as well; `maxBytesPerTrigger` limits bytes",
    ),
    _same("minOffsetsPerTrigger", "source", "-"),
    _same(
        "maxTriggerDelay",
        "source",
        "`15m`",
        "counts from the first record that waits, Kafka's from the last micro-batch",
    ),
    _same("minPartitions", "source", "-", "without it ranges of few records share tasks"),
    _same("maxRecordsPerPartition", "source", "-"),
    _same("includeHeaders", "source", "`false`"),
    KafkaOption(
        "kafka.isolation.level",
        "source",
        "`read_uncommitted`",
        ("isolation",),
        "four levels: Kafka's two, `read_replicated` and `read_atomic`",
        "use isolation (of the source)",
    ),
    KafkaOption(
        "kafka.client.rack",
        "source",
        "-",
        ("rack",),
        "`ISOLOG_RACK` names the rack of each executor; not under `read_uncommitted`",
        "use rack",
    ),
    KafkaOption(
        "groupIdPrefix",
        "source",
        "`spark-kafka-source`",
        (),
        _NO_GROUPS,
        _NO_GROUPS,
    ),
    KafkaOption("kafka.group.*", "source", "-", (), _NO_GROUPS, _NO_GROUPS),
    KafkaOption(
        "kafka.auto.offset.reset",
        "source",
        "refused",
        ("startingOffsets",),
        "",
        "use startingOffsets",
    ),
    KafkaOption(
        "kafkaConsumer.*",
        "source",
        "`pollTimeoutMs`: 120 s",
        ("brokerTimeout",),
        "how long a query waits for brokers that do not answer",
        "use brokerTimeout, or leave it out",
    ),
    KafkaOption(
        "fetchOffset.*",
        "source",
        "`numRetries`: 3, `retryIntervalMs`: 1000",
        (),
        _NOTHING,
        _NOTHING,
    ),
    _same("topic", "sink", "column `topic`", "a missing topic is made with `createTopic`"),
    KafkaOption(
        "kafka.acks",
        "sink",
        "`all`",
        ("isolation",),
        "`read_committed` waits for the in-sync replicas, `read_uncommitted` for the leader alone",
        "use isolation (of the sink)",
    ),
    KafkaOption(
        "kafka.transactional.id",
        "sink",
        "-",
        ("transactional", "sinkId"),
        "nothing is needed: the sink is transactional as it is",
        "use sinkId, or nothing: the sink is transactional as it is",
    ),
    KafkaOption(
        "kafka.security.*",
        "both",
        "`PLAINTEXT`",
        ("tls",),
        "`tls`, or any `tls.*`, says that there is TLS; a credential is sent wherever it is given",
        "use tls, and user and password or token",
    ),
    KafkaOption(
        "kafka.sasl.*",
        "both",
        "-",
        ("user", "password", "token", "tokenFile"),
        "no JAAS text: a user and a password, or a token",
        _WHO,
    ),
    KafkaOption(
        "kafka.ssl.*",
        "both",
        "-",
        ("tls.ca", "tls.cert", "tls.key"),
        "PEM files in the place of key stores",
        _SECURITY,
    ),
    KafkaOption(
        "kafka.compression.type",
        "sink",
        "`none`",
        ("topic.<setting>",),
        "a setting of the topic: `topic.compression` = `lz4` or `zstd`",
        "use the topic's setting compression: topic.compression where createTopic makes the topic",
    ),
    KafkaOption(
        "kafka.*",
        "both",
        "Kafka's",
        (),
        f"{_NOTHING} (fetches, batches, lingering and retries size themselves)",
        _NOTHING,
    ),
)


def replaced(option: str) -> KafkaOption | None:
    """Return the row of a Kafka option that isolog lacks; None if both have it, or neither."""
    found = next((each for each in KAFKAS if each.covers(option)), None)
    return found if found is not None and found.remedy else None
