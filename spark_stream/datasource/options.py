"""The options of ``format("isolog")``: which there are, what they may be, what is wrong with one.

Names are not case-sensitive. Every bad value has a message of its own, and an unknown name is
refused with the nearest known one: an option that is silently ignored costs its user a day.
"""

from __future__ import annotations

import difflib
import json
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, TypeVar

from spark_stream.client.topics import level
from spark_stream.consistency.isolation import PRODUCER_LEVELS, Isolation
from spark_stream.errors import InvalidOption, Unsupported
from spark_stream.wire.messages import EARLIEST, LATEST

SINK_ID_LENGTH_MAX: Final = 200
"""A transactional id has at most 255 characters, and a sink's has a prefix."""

T = TypeVar("T")
OffsetsByTopic = Mapping[str, Mapping[int, int]]
Named = int | OffsetsByTopic
"""-2 (earliest), -1 (latest), or offsets by topic and partition (-2 and -1 among them)."""

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
    "createTopic",
    "partitions",
    "replicationFactor",
    "checkpointLocation",  # Spark's own, which it hands on
)
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
class Place:
    """Where the log is: addresses of brokers, or a directory."""

    bootstrap: str | None = None
    path: str | None = None


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
    partitions: int = 1
    replication_factor: int = 1


def source_options(given: Mapping[str, str], *, streaming: bool | None = None) -> SourceOptions:
    """A reader's options; ``streaming=None`` while it is not known which kind of reader it will be.

    Raises:
        InvalidOption, Unsupported: naming the option, what it takes and what it got.
    """
    options = _checked(given, _SOURCE, "source")
    place, short = _place(options, names_topic="subscribe" in options)
    subscribed = options.get("subscribe", short)
    if subscribed is None:
        raise InvalidOption("which topic? Give subscribe, or load(topic)", option="subscribe")
    topics = tuple(dict.fromkeys(name.strip() for name in subscribed.split(",") if name.strip()))
    if not topics:
        raise InvalidOption("subscribe is empty; give one topic, or several with commas between")
    for option, wrong_for in (("maxOffsetsPerTrigger", False), ("endingOffsets", True)):
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
    options = _checked(given, _SINK, "sink")
    place, short = _place(options, names_topic="topic" in options)
    transactional = _value(options, "transactional", _boolean, True)
    if "sinkId" in options and not (streaming and transactional):
        kind = "a streaming query" if not streaming else "transactional=true"
        raise InvalidOption(f"sinkId is for {kind}", option="sinkId")
    create = _value(options, "createTopic", _boolean, False)
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
        partitions=_value(options, "partitions", _positive, 1),
        replication_factor=_value(options, "replicationFactor", _positive, 1),
    )


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
                f"option {later[name]!r}: this release does not have it yet", option=later[name]
            )
        elif name in others:
            raise InvalidOption(f"option {others[name]!r} is not for a {what}", option=others[name])
        else:
            raise InvalidOption(f"unknown option {key!r}; {_guess(name, proper)}", option=key)
    return found


def _guess(name: str, proper: Mapping[str, str]) -> str:
    """What somebody may have meant by an option that there is not."""
    if "." in name and "createtopic" in proper:
        return f"a setting of a topic that createTopic=true makes is given as 'topic.{name}'"
    near = difflib.get_close_matches(name, proper, n=1, cutoff=0.65)
    return f"did you mean {proper[near[0]]!r}?" if near else f"known: {', '.join(proper.values())}"


def _place(options: Mapping[str, str], *, names_topic: bool) -> tuple[Place, str | None]:
    """Where the log is, and the topic if ``load``, ``save`` or ``start`` was given one.

    Spark hands the argument of ``load`` on as the option ``path``, and lets nobody give both. So a
    ``path`` beside ``bootstrap``, or where the environment says where the log is, is a topic; else
    it is a directory.
    """
    bootstrap, path = options.get("bootstrap"), options.get("path")
    if bootstrap is not None:
        if path is not None and names_topic:
            raise InvalidOption(
                f"bootstrap and path ({path!r}): a log is at one place; give one of the two",
                option="path",
            )
        return Place(bootstrap=bootstrap), path
    default = _default_place()
    if path is not None and default is not None and not names_topic:
        return default, path
    if path is not None:
        return Place(path=os.path.abspath(_local(path))), None
    if default is not None:
        return default, None
    raise InvalidOption(
        "where is the log? Give bootstrap (host:port) or path (a directory)", option="bootstrap"
    )


def _default_place() -> Place | None:
    """What the environment says: ISOLOG_BOOTSTRAP or ISOLOG_PATH, as for the command line."""
    bootstrap, path = os.environ.get("ISOLOG_BOOTSTRAP"), os.environ.get("ISOLOG_PATH")
    if bootstrap:
        return Place(bootstrap=bootstrap)
    return Place(path=os.path.abspath(path)) if path else None


def _local(path: str) -> Path:
    if path.startswith("file:"):
        return Path("/" + path.removeprefix("file:").lstrip("/"))
    if "://" in path:
        raise InvalidOption(f"path is a directory on this machine, not {path!r}", option="path")
    return Path(path).expanduser()


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
    try:
        parsed = json.loads(text)
        found = {
            str(topic): {int(number): int(offset) for number, offset in places.items()}
            for topic, places in parsed.items()
        }
    except (ValueError, AttributeError, TypeError):
        raise InvalidOption(
            f'{name} takes earliest | latest | {{"topic": {{"0": 23, "1": -2}}}}, not {text!r}',
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
    return found
