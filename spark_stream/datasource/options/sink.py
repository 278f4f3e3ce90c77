"""What a writer is asked for."""

from __future__ import annotations

from collections.abc import Mapping

from msgspec.structs import replace

from spark_stream.consistency.isolation import Isolation
from spark_stream.datasource.options.checking import TOPIC_SETTING, checked, topic_settings
from spark_stream.datasource.options.table import GivenToSink, Use
from spark_stream.datasource.options.values import BadRecords
from spark_stream.datasource.spark.place import Place, place_of
from spark_stream.errors import InvalidOption
from spark_stream.schema.keys import PARTITION_BY, split_names


class SinkOptions(GivenToSink, frozen=True):
    """The checked options of a sink. ``topic`` is None where the column ``topic`` decides."""

    place: Place
    topic_config: tuple[tuple[str, str], ...] = ()


def sink_options(given: Mapping[str, str], *, streaming: bool = True) -> SinkOptions:
    """Parse and check a writer's options.

    Raises:
        InvalidOption, Unsupported: naming the option, what it takes and what it got.
    """
    settings, given = topic_settings(given)
    texts = checked(given, Use.SINK, "sink")
    place, short = place_of(texts, names_topic="topic" in texts)
    if short is not None:
        texts.setdefault("topic", short)
    options = GivenToSink.of(texts)
    _check_identity(options, streaming=streaming)
    _check_creation(options, settings)
    _check_dead_letters(options)
    derived: dict[str, object] = {}
    if PARTITION_BY in settings:
        derived["partitionBy"] = _partition_by(options.partition_by, settings.pop(PARTITION_BY))
    if "isolation" not in options and not options.transactional:
        derived["isolation"] = Isolation.READ_UNCOMMITTED
    return SinkOptions(
        replace(place, timeout_s=options.broker_timeout_s),
        tuple(settings.items()),
        values={**options.values, **derived},
    )


def _check_creation(options: GivenToSink, settings: Mapping[str, str]) -> None:
    if options.create_topic:
        return
    names = [f"{TOPIC_SETTING}{name}" for name in settings]
    names += [name for name in ("partitions", "replicationFactor") if name in options]
    for name in names:
        raise InvalidOption(f"{name} is for createTopic=true", option=name)


def _check_dead_letters(options: GivenToSink) -> None:
    found = options.dead_letter_topic
    if options.on_bad_record is not BadRecords.DEAD_LETTER:
        if found is not None:
            raise InvalidOption(
                "deadLetterTopic is for onBadRecord=deadLetter", option="deadLetterTopic"
            )
        return
    if found is None:
        raise InvalidOption(
            "onBadRecord=deadLetter without deadLetterTopic: it says where bad rows go",
            option="deadLetterTopic",
        )
    if found == options.topic:
        raise InvalidOption(
            f"deadLetterTopic is {found!r}, the topic that the query writes to",
            option="deadLetterTopic",
            hint="Give dead letters a topic of their own.",
        )


def _partition_by(asked: tuple[str, ...] | None, own: str) -> tuple[str, ...]:
    """Return the columns by which rows are placed; ``own`` is the setting of a new topic."""
    found = split_names(own)
    if asked is not None and asked != found:
        raise InvalidOption(
            f"partitionBy is {','.join(asked)!r} and {TOPIC_SETTING}{PARTITION_BY} is {own!r}",
            option="partitionBy",
            hint="Give one of them.",
        )
    return found


def _check_identity(options: GivenToSink, *, streaming: bool) -> None:
    """Check the options around ``sinkId``: a stream has its own batch ids, a batch write none."""
    for option in ("sinkId", "batchId", "differentReplay", "transactionTimeout"):
        if option in options and not options.transactional:
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
