"""What a writer is asked for."""

from __future__ import annotations

from collections.abc import Mapping

from msgspec import Struct
from msgspec.structs import replace

from spark_stream.consistency.isolation import Isolation
from spark_stream.datasource.options.checking import TOPIC_SETTING, Given, checked, topic_settings
from spark_stream.datasource.options.table import Use
from spark_stream.datasource.options.values import TRANSACTION_TIMEOUT_MS, BadRecords
from spark_stream.datasource.spark.place import Place, place_of
from spark_stream.datasource.values.content import Replays
from spark_stream.errors import InvalidOption
from spark_stream.schema.keys import PARTITION_BY, split_names
from spark_stream.wire.limits import QUERY_NAME_LENGTH_MAX


class SinkOptions(Struct, frozen=True):
    """What a writer was asked for. ``topic`` is None where the column ``topic`` decides.

    ``dead_letter_topic``: where rows go that do not fit, None if they fail the query.
    """

    place: Place
    topic: str | None
    transactional: bool = True
    sink_id: str | None = None
    isolation: Isolation = Isolation.READ_COMMITTED
    create_topic: bool = False
    partitions: int | None = None
    replication_factor: int | None = None
    topic_config: tuple[tuple[str, str], ...] = ()
    partition_by: tuple[str, ...] = ()
    batch_id: int | None = None
    replays: Replays = Replays.FAIL
    checkpoint: str | None = None
    dead_letter_topic: str | None = None
    transaction_timeout_ms: int = TRANSACTION_TIMEOUT_MS
    query_name: str = ""


def sink_options(given: Mapping[str, str], *, streaming: bool = True) -> SinkOptions:
    """Parse and check a writer's options.

    Raises:
        InvalidOption, Unsupported: naming the option, what it takes and what it got.
    """
    settings, given = topic_settings(given)
    options = checked(given, Use.SINK, "sink")
    place, short = place_of(options.texts, names_topic="topic" in options)
    transactional = options.value("transactional")
    _check_identity(options, streaming=streaming, transactional=transactional)
    create = options.value("createTopic")
    if settings and not create:
        name = f"{TOPIC_SETTING}{next(iter(settings))}"
        raise InvalidOption(f"{name} is for createTopic=true", option=name)
    own = settings.pop(PARTITION_BY, None)
    for option in ("partitions", "replicationFactor"):
        if option in options and not create:
            raise InvalidOption(f"{option} is for createTopic=true", option=option)
    unasked = Isolation.READ_COMMITTED if transactional else Isolation.READ_UNCOMMITTED
    topic = options.value("topic") if "topic" in options or short is None else short.strip()
    return SinkOptions(
        place=replace(place, timeout_s=options.value("brokerTimeout")),
        topic=topic,
        transactional=transactional,
        sink_id=options.value("sinkId"),
        isolation=options.value("isolation") or unasked,
        create_topic=create,
        partitions=options.value("partitions"),
        replication_factor=options.value("replicationFactor"),
        topic_config=tuple(settings.items()),
        partition_by=_partition_by(options.value("partitionBy"), own),
        batch_id=options.value("batchId"),
        replays=options.value("differentReplay"),
        checkpoint=options.value("checkpointLocation"),
        dead_letter_topic=_dead_letter_topic(options, topic),
        transaction_timeout_ms=round(options.value("transactionTimeout") * 1000),
        query_name=(options.value("queryName") or "")[:QUERY_NAME_LENGTH_MAX],
    )


def _dead_letter_topic(options: Given, topic: str | None) -> str | None:
    """Return where rows go that do not fit their topic, None if they fail the query."""
    found: str | None = options.value("deadLetterTopic")
    if options.value("onBadRecord") is not BadRecords.DEAD_LETTER:
        if found is not None:
            raise InvalidOption(
                "deadLetterTopic is for onBadRecord=deadLetter", option="deadLetterTopic"
            )
        return None
    if found is None:
        raise InvalidOption(
            "onBadRecord=deadLetter without deadLetterTopic: it says where bad rows go",
            option="deadLetterTopic",
        )
    if found == topic:
        raise InvalidOption(
            f"deadLetterTopic is {found!r}, the topic that the query writes to",
            option="deadLetterTopic",
            hint="Give dead letters a topic of their own.",
        )
    return found


def _partition_by(asked: tuple[str, ...] | None, own: str | None) -> tuple[str, ...]:
    """Return the columns by which rows are placed; ``own`` is the setting of a new topic."""
    if own is None:
        return asked or ()
    found = split_names(own)
    if asked not in (None, found):
        raise InvalidOption(
            f"partitionBy is {','.join(asked)!r} and {TOPIC_SETTING}{PARTITION_BY} is {own!r}",
            option="partitionBy",
            hint="Give one of them.",
        )
    return found


def _check_identity(options: Given, *, streaming: bool, transactional: bool) -> None:
    """Check the options around ``sinkId``: a stream has its own batch ids, a batch write none."""
    for option in ("sinkId", "batchId", "differentReplay", "transactionTimeout"):
        if option in options and not transactional:
            raise InvalidOption(f"{option} is for transactional=true", option=option)
    if streaming:
        if "batchId" in options:
            raise InvalidOption(
                "batchId is for a batch write (foreachBatch); a streaming query has its own",
                option="batchId",
            )
        return
    for option, other in (("sinkId", "batchId"), ("batchId", "sinkId")):
        if option in options and other not in options:
            raise InvalidOption(
                f"{option} without {other}: a batch write needs both, to be written once",
                option=other,
            )
    if "differentReplay" in options and "batchId" not in options:
        raise InvalidOption(
            "differentReplay is for a streaming query, or a batch write with sinkId and batchId",
            option="differentReplay",
        )
