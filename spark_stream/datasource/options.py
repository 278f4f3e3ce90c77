"""The options of ``format("isolog")``: which there are, what they may be, what is wrong with one.

Names are not case-sensitive. Every bad value has a message of its own, and an unknown name is
refused with the nearest known one: an option that is silently ignored costs its user a day.
"""

from __future__ import annotations

import difflib
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final, TypeVar

from spark_stream.client.topics import level
from spark_stream.consistency.isolation import PRODUCER_LEVELS, Isolation
from spark_stream.datasource.kafka import instead_of
from spark_stream.datasource.offsets import TopicOffsets, from_json
from spark_stream.datasource.place import Place, place_of
from spark_stream.errors import InvalidOption, InvalidRequest, Unsupported
from spark_stream.wire.messages import EARLIEST, INT64_MAX, LATEST

SINK_ID_LENGTH_MAX: Final = 200
"""A transactional id has at most 255 characters, and a sink's has a prefix."""

TOPIC_SETTING: Final = "topic."
"""Before the name of a setting of a topic that the sink makes."""

T = TypeVar("T")
OffsetsByTopic = Mapping[str, Mapping[int, int]]


@dataclass(frozen=True, slots=True)
class FromProgress:
    """Streaming offsets as a query's progress shows them; ``logged`` is that JSON, parsed."""

    logged: Mapping[str, Any]
    offsets: Mapping[str, TopicOffsets]


Named = int | OffsetsByTopic | FromProgress
"""-2 (earliest), -1 (latest), offsets by topic and partition (-2 and -1 among them), or a progress.
"""

_BOTH: Final = ("bootstrap", "path", "isolation")
_SOURCE: Final = (
    *_BOTH,
    "subscribe",
    "startingOffsets",
    "endingOffsets",
    "maxOffsetsPerTrigger",
    "failOnDataLoss",
    "includeHeaders",
    "includeMetadata",
)
_SINK: Final = (
    *_BOTH,
    "topic",
    "transactional",
    "sinkId",
    "batchId",
    "differentReplay",
    "createTopic",
    "partitions",
    "replicationFactor",
    "checkpointLocation",  # Spark's own, which it hands on
)
_STREAM_ONLY: Final = ("maxOffsetsPerTrigger",)
_BATCH_ONLY: Final = ("endingOffsets",)
_LATER: Final = (
    "subscribePattern",
    "assign",
    "startingTimestamp",
    "startingOffsetsByTimestamp",
    "endingTimestamp",
    "endingOffsetsByTimestamp",
    "consumer",
    "maxBytesPerTrigger",
    "minOffsetsPerTrigger",
    "maxTriggerDelay",
    "minPartitions",
    "maxRecordsPerPartition",
    "filter",
    "user",
    "password",
    "token",
    "tls.ca",
    "tls.cert",
    "tls.key",
)


@dataclass(frozen=True, slots=True)
class SourceOptions:
    """What a reader was asked for."""

    place: Place
    topics: tuple[str, ...]
    isolation: Isolation = Isolation.READ_UNCOMMITTED
    starting: Named = EARLIEST
    ending: Named = LATEST
    max_offsets: int | None = None
    fail_on_data_loss: bool = True
    include_headers: bool = False
    include_metadata: bool = False


@dataclass(frozen=True, slots=True)
class SinkOptions:
    """What a writer was asked for. ``topic`` is None where the column ``topic`` decides."""

    place: Place
    topic: str | None
    transactional: bool = True
    sink_id: str | None = None
    isolation: Isolation = Isolation.READ_COMMITTED
    create_topic: bool = False
    partitions: int | None = None
    replication_factor: int = 1
    topic_config: tuple[tuple[str, str], ...] = ()
    batch_id: int | None = None
    keep_different: bool = False
    checkpoint: str | None = None


def source_options(given: Mapping[str, str], *, streaming: bool | None = None) -> SourceOptions:
    """A reader's options; ``streaming=None`` while it is not known which kind of reader it will be.

    Raises:
        InvalidOption, Unsupported: naming the option, what it takes and what it got.
    """
    options = _checked(given, _SOURCE, "source")
    place, short = place_of(options, names_topic="subscribe" in options)
    subscribed = options.get("subscribe", short)
    if subscribed is None:
        raise InvalidOption("which topic? Give subscribe, or load(topic)", option="subscribe")
    topics = tuple(dict.fromkeys(name.strip() for name in subscribed.split(",") if name.strip()))
    if not topics:
        raise InvalidOption("subscribe is empty; give one topic, or several with commas between")
    for names, wrong_for in ((_STREAM_ONLY, False), (_BATCH_ONLY, True)):
        for option in names:
            if streaming is wrong_for and option in options:
                kind = "streaming" if wrong_for else "batch"
                raise InvalidOption(f"{option} is not for a {kind} query", option=option)
    starting = _offsets(options, "startingOffsets", EARLIEST, topics)
    ending = _offsets(options, "endingOffsets", LATEST, topics)
    if streaming is False and starting == LATEST:
        raise InvalidOption("startingOffsets: a batch query cannot start at latest")
    if ending == EARLIEST:
        raise InvalidOption("endingOffsets: a query cannot end at earliest")
    return SourceOptions(
        place=place,
        topics=topics,
        isolation=level(options.get("isolation", Isolation.READ_UNCOMMITTED)),
        starting=starting,
        ending=ending,
        max_offsets=_value(options, "maxOffsetsPerTrigger", _positive, None),
        fail_on_data_loss=_value(options, "failOnDataLoss", _boolean, True),
        include_headers=_value(options, "includeHeaders", _boolean, False),
        include_metadata=_value(options, "includeMetadata", _boolean, False),
    )


def sink_options(given: Mapping[str, str], *, streaming: bool = True) -> SinkOptions:
    """A writer's options.

    Raises:
        InvalidOption, Unsupported: naming the option, what it takes and what it got.
    """
    settings, given = _topic_settings(given)
    options = _checked(given, _SINK, "sink")
    place, short = place_of(options, names_topic="topic" in options)
    transactional = _value(options, "transactional", _boolean, True)
    _check_identity(options, streaming=streaming, transactional=transactional)
    create = _value(options, "createTopic", _boolean, False)
    if settings and not create:
        name = f"{TOPIC_SETTING}{next(iter(settings))}"
        raise InvalidOption(f"{name} is for createTopic=true", option=name)
    for option in ("partitions", "replicationFactor"):
        if option in options and not create:
            raise InvalidOption(f"{option} is for createTopic=true", option=option)
    topic = options.get("topic", short)
    isolation = Isolation.READ_COMMITTED if transactional else Isolation.READ_UNCOMMITTED
    return SinkOptions(
        place=place,
        topic=None if topic is None else topic.strip(),
        transactional=transactional,
        sink_id=_value(options, "sinkId", _sink_id, None),
        isolation=level(options.get("isolation", isolation), PRODUCER_LEVELS),
        create_topic=create,
        partitions=_value(options, "partitions", _positive, None),
        replication_factor=_value(options, "replicationFactor", _positive, 1),
        topic_config=tuple(settings.items()),
        batch_id=_value(options, "batchId", _batch_id, None),
        keep_different=_value(options, "differentReplay", _keeps, False),
        checkpoint=options.get("checkpointLocation"),
    )


def _topic_settings(given: Mapping[str, str]) -> tuple[dict[str, str], dict[str, str]]:
    """The settings of a topic to be made (``topic.retention.ms``), by name, and all else."""
    settings, rest = {}, {}
    for key, value in given.items():
        name = key.lower()
        if name.startswith(TOPIC_SETTING):
            settings[name.removeprefix(TOPIC_SETTING)] = value
        else:
            rest[key] = value
    return settings, rest


def _check_identity(options: Mapping[str, str], *, streaming: bool, transactional: bool) -> None:
    """What belongs to ``sinkId``: a streaming query has its own batch ids, a batch write none."""
    for option in ("sinkId", "batchId", "differentReplay"):
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


def source_part(given: Mapping[str, str], *, streaming: bool | None = None) -> dict[str, str]:
    """Of options that are for a source and a sink together, those for this kind of source."""
    other_kind = {None: (), True: _BATCH_ONLY, False: _STREAM_ONLY}[streaming]
    _, given = _topic_settings(given)
    known = _checked(given, (*_SOURCE, *_SINK), "table")
    return {
        name: value for name, value in known.items() if name in _SOURCE and name not in other_kind
    }


def sink_part(given: Mapping[str, str], *, streaming: bool) -> dict[str, str]:
    """Of options that are for a source and a sink together, those for this kind of sink.

    ``isolation`` is the source's: what it may be there is more than a sink takes.
    """
    settings, given = _topic_settings(given)
    known = _checked(given, (*_SOURCE, *_SINK), "table")
    if "batchId" in known:
        raise InvalidOption("batchId is for one write, not for a table", option="batchId")
    other_kind = {"isolation"} if streaming else {"isolation", "sinkId", "differentReplay"}
    part = {
        name: value for name, value in known.items() if name in _SINK and name not in other_kind
    }
    return part | {f"{TOPIC_SETTING}{name}": value for name, value in settings.items()}


def _checked(given: Mapping[str, str], known: tuple[str, ...], what: str) -> dict[str, str]:
    """The options by their proper names."""
    proper = {name.lower(): name for name in known}
    later = {name.lower(): name for name in _LATER}
    others = {name.lower(): name for name in (*_SOURCE, *_SINK)}
    found = {}
    for key, value in given.items():
        name = key.lower()
        if name in proper:
            found[proper[name]] = value
        elif name in later:
            raise Unsupported(
                f"option {later[name]!r} is still to come",
                hint="Leave it out; docs/api.md says what there is.",
                option=later[name],
            )
        elif name in others:
            raise InvalidOption(f"option {others[name]!r} is not for a {what}", option=others[name])
        elif (hint := instead_of(key)) is not None:
            raise InvalidOption(
                f"option {key!r} is one of Spark's Kafka connector; {hint}", option=key
            )
        else:
            raise InvalidOption(f"unknown option {key!r}; {_guess(name, proper)}", option=key)
    return found


def _guess(name: str, proper: Mapping[str, str]) -> str:
    """What somebody may have meant by an option that there is not."""
    if "." in name and "createtopic" in proper:
        return f"a setting of a topic that createTopic=true makes is given as 'topic.{name}'"
    near = difflib.get_close_matches(name, proper, n=1, cutoff=0.65)
    return f"did you mean {proper[near[0]]!r}?" if near else f"known: {', '.join(proper.values())}"


def _value(
    options: Mapping[str, str], name: str, parse: Callable[[str, str], T], default: Any
) -> Any:
    return default if name not in options else parse(name, options[name])


def _boolean(name: str, text: str) -> bool:
    if text.strip().lower() not in ("true", "false"):
        raise InvalidOption(f"{name} takes true | false, not {text!r}", option=name)
    return text.strip().lower() == "true"


def _positive(name: str, text: str) -> int:
    try:
        number = int(text.strip())
    except ValueError:
        number = 0
    if number < 1:
        raise InvalidOption(f"{name} takes a whole number from 1 on, not {text!r}", option=name)
    return number


def _batch_id(name: str, text: str) -> int:
    found = text.strip()
    if not (found.isascii() and found.isdecimal() and int(found) <= INT64_MAX):
        raise InvalidOption(f"{name} takes a whole number from 0 on, not {text!r}", option=name)
    return int(found)


def _keeps(name: str, text: str) -> bool:
    if text.strip().lower() not in ("fail", "keep"):
        raise InvalidOption(f"{name} takes fail | keep, not {text!r}", option=name)
    return text.strip().lower() == "keep"


def _sink_id(name: str, text: str) -> str:
    found = text.strip()
    if not 1 <= len(found) <= SINK_ID_LENGTH_MAX:
        raise InvalidOption(
            f"{name} takes a text of 1 to {SINK_ID_LENGTH_MAX} characters, not {text!r}",
            option=name,
        )
    return found


def _offsets(options: Mapping[str, str], name: str, default: int, topics: tuple[str, ...]) -> Named:
    text = options.get(name)
    if text is None:
        return default
    words = {"earliest": EARLIEST, "latest": LATEST}
    if text.strip().lower() in words:
        return words[text.strip().lower()]
    found: OffsetsByTopic
    progress = None
    try:
        parsed = json.loads(text)
        if parsed and all("partitions" in topic for topic in parsed.values()):
            progress = FromProgress(parsed, from_json(parsed))
            found = {topic: at.offsets for topic, at in progress.offsets.items()}
        else:
            found = {
                str(topic): {int(number): int(offset) for number, offset in places.items()}
                for topic, places in parsed.items()
            }
    except (ValueError, AttributeError, TypeError, OverflowError, InvalidRequest):
        raise InvalidOption(
            f'{name} takes earliest | latest | {{"topic": {{"0": 23, "1": -2}}}} | a streaming'
            f" offset of a query's progress, not {text!r}",
            option=name,
        ) from None
    for topic, places in found.items():
        if topic not in topics:
            raise InvalidOption(f"{name}: topic {topic!r} is not subscribed to", option=name)
        for number, offset in places.items():
            if offset < EARLIEST or number < 0:
                raise InvalidOption(
                    f"{name}: {topic}/{number}: an offset is at least 0, or -2 (earliest), or -1"
                    f" (latest), not {offset}",
                    option=name,
                )
    return progress or found
