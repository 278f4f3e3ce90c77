"""The names of options: checks which of them a query may have. Each refusal states its remedy.

Options of Spark's Kafka connector that isolog does not have are refused with their substitutes. The
table in ``docs/kafka.md`` is generated from the same rows (:data:`KAFKAS`).
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping
from typing import Final

from msgspec import Struct

from spark_stream.datasource.options.table import OPTIONS, Use, options_for
from spark_stream.errors import InvalidOption

TOPIC_SETTING: Final = "topic."
"""The prefix of a setting of a topic that the sink creates."""

_WRITES: Final = "A sink writes to the topic in the option topic, or in the column topic."

_OTHER_SIDES: Final = {
    "topic": "A source reads the topics of subscribe, subscribePattern or assign.",
    "subscribe": _WRITES,
    "subscribePattern": _WRITES,
    "assign": _WRITES,
}

_LEAVE_OUT: Final = "Leave it out; docs/reference/options.md describes each option."


def check_names(given: Mapping[str, str], side: Use, what: str) -> dict[str, str]:
    """Return the options' texts by their proper names.

    Raises:
        InvalidOption: An option is not for this side, belongs to Spark's Kafka connector (one error
            names all of these), or is unknown.
    """
    proper = _lowered(options_for(side))
    others = _lowered(options_for(Use.ALL))
    _refuse_kafkas(key for key in given if key.lower() not in others)
    found = {}
    for key, value in given.items():
        name = key.lower()
        if name in proper:
            found[proper[name]] = value
        elif name in others:
            raise InvalidOption(
                f"option {others[name]!r} is not for a {what}",
                hint=_OTHER_SIDES.get(others[name], _LEAVE_OUT),
                option=others[name],
            )
        else:
            raise InvalidOption(f"unknown option {key!r}; {_guess(name, proper)}", option=key)
    return found


def check_kind(given: Iterable[str], kind: Use) -> None:
    """Raise InvalidOption if a batch query has an option for streams only, or the reverse."""
    known = options_for(kind)
    for name in given:
        if name not in known:
            called = "streaming" if kind & (Use.STREAM_SOURCE | Use.STREAM_SINK) else "batch"
            raise InvalidOption(
                f"{name} is not for a {called} query",
                hint=_LEAVE_OUT,
                option=name,
            )


def topic_settings(given: Mapping[str, str]) -> tuple[dict[str, str], dict[str, str]]:
    """Split off the settings of a topic that the sink creates (``topic.retention.ms``)."""
    settings, rest = {}, {}
    for key, value in given.items():
        name = key.lower()
        if name.startswith(TOPIC_SETTING):
            settings[name.removeprefix(TOPIC_SETTING)] = value
        else:
            rest[key] = value
    return settings, rest


def table_option_names(use: Use) -> set[str]:
    """Return the options of a SQL table that take effect for this use."""
    return {each.name for each in OPTIONS if each.uses_in_table & use}


def _lowered(names: Iterable[str]) -> dict[str, str]:
    """Map names in lower case to proper names, without patterns (``topic.<setting>``)."""
    return {name.lower(): name for name in names if "<" not in name}


def _guess(name: str, proper: Mapping[str, str]) -> str:
    """Suggest an option for an unknown name."""
    if "." in name and "createtopic" in proper:
        return f"a setting of a topic that createTopic=true creates is written 'topic.{name}'"
    near = difflib.get_close_matches(name, proper, n=1, cutoff=0.65)
    return f"did you mean {proper[near[0]]!r}?" if near else f"known: {', '.join(proper.values())}"


def _refuse_kafkas(names: Iterable[str]) -> None:
    """Raise one InvalidOption for all of these that belong to Spark's Kafka connector."""
    rows = {name: row for name in names if (row := kafka_row(name)) is not None}
    if not rows:
        return
    first, *others = ((row.shown(name), row.remedy) for name, row in rows.items())
    if others:
        lines = [f"\n  {name!r}: {remedy}" for name, remedy in (first, *others)]
        message = f"{len(lines)} options of Spark's Kafka connector:{''.join(lines)}\n"
    else:
        message = f"option {first[0]!r} is one of Spark's Kafka connector; {first[1]}"
    raise InvalidOption(message, option=first[0])


class KafkaOption(Struct, frozen=True):
    """An option of the Kafka connector, or a family of them (``kafka.ssl.*``).

    ``side`` is ``source``, ``sink`` or ``both``. ``ours`` are the options in its place, which may
    have its name. ``remedy`` is the advice about a name that isolog does not have.
    """

    name: str
    side: str
    default: str
    ours: tuple[str, ...] = ()
    differs: str = ""
    remedy: str = ""

    def shown(self, given: str) -> str:
        """Return the option's name in Kafka's spelling, because Spark passes it in lower case."""
        return given if self.name.endswith("*") else self.name

    def covers(self, name: str) -> bool:
        """Return whether the name is this option, or one of this family, in any letter case."""
        prefix = self.name.removesuffix("*").lower()
        return (
            name.lower().startswith(prefix) if self.name.endswith("*") else name.lower() == prefix
        )


def _same(name: str, side: str, default: str, differs: str = "") -> KafkaOption:
    return KafkaOption(name, side, default, (name,), differs)


_NOTHING: Final = "leave it out: no option is needed in its place"

_NO_GROUPS: Final = (
    "leave it out: a query is in no consumer group, and its offsets are in its checkpoint"
)

_BATCHES: Final = "in batch queries only, as with Kafka"
_SECURITY: Final = "use tls.ca, tls.cert, tls.key"
_WHO: Final = "use user and password, or token"

# The row of a single option comes before the row of its family.
KAFKAS: Final = (
    KafkaOption(
        "kafka.bootstrap.servers",
        "both",
        "-",
        ("bootstrap", "path"),
        "with `path`, no broker has to run before",
        "use bootstrap",
    ),
    _same("subscribe", "source", "-"),
    _same("subscribePattern", "source", "-", "a regular expression of Python, not of Java"),
    _same("assign", "source", "-"),
    _same(
        "startingOffsets",
        "source",
        "`latest`; in a batch query `earliest`",
        "the default is `earliest` in both. Offsets count records only, so an offset of Kafka"
        " means another record",
    ),
    _same(
        "startingTimestamp", "source", "-", "takes precedence over `startingOffsets`, as with Kafka"
    ),
    _same("startingOffsetsByTimestamp", "source", "-"),
    KafkaOption(
        "startingOffsetsByTimestampStrategy",
        "source",
        "`error`",
        (),
        "if no record is at or after the time, the query starts at the end",
        "leave it out: if no record is at or after the time, the query starts at the end",
    ),
    _same("endingOffsets", "source", "`latest`", _BATCHES),
    _same("endingTimestamp", "source", "-", _BATCHES),
    _same("endingOffsetsByTimestamp", "source", "-", _BATCHES),
    _same("failOnDataLoss", "source", "`true`", "the message names topic, partition and range"),
    _same(
        "maxOffsetsPerTrigger",
        "source",
        "-",
        "Kafka's also counts the markers of transactions. `maxBytesPerTrigger` limits bytes",
    ),
    _same("minOffsetsPerTrigger", "source", "-"),
    _same(
        "maxTriggerDelay",
        "source",
        "`15m`",
        "counts from the first pending record, Kafka's from the last micro-batch",
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
        "`ISOLOG_RACK` sets the rack of each executor. Not under `read_uncommitted`",
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
        "the longest wait for brokers that do not answer",
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
    _same("topic", "sink", "column `topic`", "`createTopic` creates a missing topic"),
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
        "not needed: the sink is transactional by default",
        "use sinkId, or leave it out: the sink is transactional by default",
    ),
    KafkaOption(
        "kafka.security.*",
        "both",
        "`PLAINTEXT`",
        ("tls",),
        "`tls`, or any `tls.*`, turns TLS on. A credential is sent if one is given",
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
        "PEM files in place of key stores",
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
        f"{_NOTHING} (the sizes of fetches and batches, linger and retries are automatic)",
        _NOTHING,
    ),
)


def kafka_row(option: str) -> KafkaOption | None:
    """Return the row of a Kafka option that isolog lacks, or None if both have it, or neither."""
    found = next((each for each in KAFKAS if each.covers(option)), None)
    return found if found is not None and found.remedy else None
