"""The parsers of options: from an option's text to its value.

Each parser takes the option's name first, for its error message. ``spec_text`` and the functions
after it read the value of an option for the start or the end of a query.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from typing import Any, Final

from msgspec import Struct

from spark_stream.client.connecting.connection import rack_of
from spark_stream.client.lake_tables import AUTO, NEVER, ONLY, checked_choice
from spark_stream.client.options import level
from spark_stream.client.topics import checked_topic
from spark_stream.client.values import to_microseconds
from spark_stream.client.writing.producer import TIMEOUT_MS_MAX
from spark_stream.consistency.isolation import PRODUCER_LEVELS, Isolation
from spark_stream.datasource.values.content import Replays
from spark_stream.datasource.values.offsets import TopicOffsets, from_json
from spark_stream.errors import InvalidOption, InvalidRequest, InvalidTopic
from spark_stream.schema.keys import split_names
from spark_stream.sql.filters import parsed
from spark_stream.structs import INT64_MAX
from spark_stream.wire.limits import QUERY_NAME_LENGTH_MAX, TRANSACTION_TIMEOUT_MS_MAX
from spark_stream.wire.messages import EARLIEST, LATEST

SINK_ID_LENGTH_MAX: Final = 200
"""A transactional id has at most 255 characters, and that of a sink has a prefix."""

TRANSACTION_TIMEOUT_MS: Final = 120_000
"""The default of ``transactionTimeout``.

It is several times the longest silence of a healthy job, and it bounds how long the transaction of
a dead driver holds back readers of committed records (decision 25).
"""

CONSUMER_LENGTH_MAX: Final = 255
_SECONDS: Final = {"ms": 0.001, "s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0, "d": 86400.0}
_DURATION: Final = re.compile(rf"([0-9]{{1,12}}) *({'|'.join(_SECONDS)})")
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_WORDS: Final = {"earliest": EARLIEST, "latest": LATEST}
_MILLISECONDS_MAX: Final = INT64_MAX // 1000


class BadRecords(StrEnum):
    """The reaction to rows that do not fit their topic."""

    FAIL = "fail"
    DEAD_LETTER = "deadLetter"


class Moment(Struct, frozen=True, order=True):
    """A point in time, in microseconds since the epoch: the first record at or after it."""

    microseconds: int

    def __str__(self) -> str:
        try:
            return (_EPOCH + timedelta(microseconds=self.microseconds)).isoformat()
        except OverflowError:  # beyond the years that Python has
            return f"{self.microseconds // 1000} ms"


OffsetOrTime = int | Moment
"""An offset, -2 (earliest) or -1 (latest), or a moment."""

ByTopic = Mapping[str, Mapping[int, OffsetOrTime]]


class FromProgress(Struct, frozen=True):
    """Streaming offsets from a query's progress. ``logged`` is their JSON, parsed."""

    logged: Mapping[str, Any]
    offsets: Mapping[str, TopicOffsets]


OffsetSpec = OffsetOrTime | ByTopic | FromProgress
"""One start for all partitions, one for each topic and partition, or the offsets of a progress."""


def as_given(name: str, text: str) -> str:
    """Return the text itself."""
    return text


def stripped(name: str, text: str) -> str:
    """Strip the blanks around the text."""
    return text.strip()


def rack(name: str, text: str) -> str:
    """Check the name of a rack."""
    found = rack_of(text.strip(), {})
    assert found is not None
    return found


def boolean(name: str, text: str) -> bool:
    """Parse ``true`` or ``false``."""
    if text.strip().lower() not in ("true", "false"):
        raise InvalidOption(f"{name} takes true | false, not {text!r}", option=name)
    return text.strip().lower() == "true"


def predicate(name: str, text: str) -> str:
    """Check that a filter can be parsed.

    It is checked against the columns when the topics are known.
    """
    parsed(text)
    return text


def column_names(name: str, text: str) -> tuple[str, ...]:
    """Parse names of columns, separated by commas.

    They are looked up when the topic is known.
    """
    found = split_names(text)
    if not found:
        raise InvalidOption(f"{name} is empty: give columns, such as 'id'", option=name)
    return found


def positive(name: str, text: str) -> int:
    """Parse a whole number from 1 on."""
    try:
        number = int(text.strip())
    except ValueError:
        number = 0
    if not 1 <= number <= INT64_MAX:
        raise _outside(name, 1, number, text)
    return number


def duration_s(name: str, text: str) -> float:
    """Parse a time with its unit, to seconds."""
    found = _DURATION.fullmatch(text.strip().lower())
    if found is None:
        raise InvalidOption(
            f"{name} takes a time with its unit, such as 500ms, 30s, 15m, 2h or 1d, not {text!r}",
            option=name,
        )
    return int(found[1]) * _SECONDS[found[2]]


def timeout_s(name: str, text: str) -> float:
    """Parse a time with its unit, from 1ms to 1h, to seconds."""
    found = duration_s(name, text)
    if not 0 < found <= TIMEOUT_MS_MAX / 1000:
        raise InvalidOption(f"{name} takes a time from 1ms to 1h, not {text!r}", option=name)
    return found


def transaction_timeout_ms(name: str, text: str) -> int:
    """Parse a time with its unit, from 1s to 1d, to milliseconds."""
    found = duration_s(name, text)
    if not 1 <= found <= TRANSACTION_TIMEOUT_MS_MAX / 1000:
        raise InvalidOption(f"{name} takes a time from 1s to 1d, not {text!r}", option=name)
    return round(found * 1000)


def query_name(name: str, text: str) -> str:
    """Cut a query's name to the length that a broker takes."""
    return text[:QUERY_NAME_LENGTH_MAX]


def batch_id(name: str, text: str) -> int:
    """Parse a whole number from 0 on that fits 64 bits."""
    found = text.strip()
    number = int(found) if found.isascii() and found.isdecimal() else -1
    if not 0 <= number <= INT64_MAX:
        raise _outside(name, 0, number, text)
    return number


def _outside(name: str, least: int, number: int, text: str) -> InvalidOption:
    where = f"to {INT64_MAX}" if number > INT64_MAX else "on"
    return InvalidOption(
        f"{name} takes a whole number from {least} {where}, not {text!r}", option=name
    )


def replays(name: str, text: str) -> Replays:
    """Parse the reaction to a replayed batch with other rows."""
    for each in Replays:
        if text.strip().lower() == each.lower():
            return each
    raise InvalidOption(f"{name} takes {' | '.join(Replays)}, not {text!r}", option=name)


def bad_record(name: str, text: str) -> BadRecords:
    """Parse the reaction to rows that do not fit their topic."""
    for each in BadRecords:
        if text.strip().lower() == each.lower():
            return each
    raise InvalidOption(f"{name} takes {' | '.join(BadRecords)}, not {text!r}", option=name)


def topic_name(name: str, text: str) -> str:
    """Check the name of a topic."""
    try:
        return checked_topic(text.strip())
    except InvalidTopic as error:
        raise InvalidOption(f"{name}: {error.message}", option=name) from None


def sink_id(name: str, text: str) -> str:
    """Check the name of a sink."""
    found = text.strip()
    if not 1 <= len(found) <= SINK_ID_LENGTH_MAX:
        raise InvalidOption(
            f"{name} takes a text of 1 to {SINK_ID_LENGTH_MAX} characters, not {text!r}",
            option=name,
        )
    return found


def consumer_name(name: str, text: str) -> str:
    """Check the name of a consumer."""
    found = text.strip()
    if not 1 <= len(found) <= CONSUMER_LENGTH_MAX:
        raise InvalidOption(
            f"{name} takes a text of 1 to {CONSUMER_LENGTH_MAX} characters, not {text!r}",
            option=name,
        )
    return found


def topic_names(name: str, text: str) -> tuple[str, ...]:
    """Parse names, separated by commas. Return each once."""
    found = tuple(dict.fromkeys(each.strip() for each in text.split(",") if each.strip()))
    if not found:
        raise InvalidOption(f"{name} is empty: give topics, separated by commas", option=name)
    return found


def pattern(name: str, text: str) -> str:
    """Check a regular expression, in the syntax of Python's ``re``."""
    try:
        re.compile(text)
    except re.error as error:
        at = "" if error.pos is None else f" at position {error.pos}: {text[error.pos :]!r}"
        raise InvalidOption(
            f"{name}: {text!r} is not a regular expression: {error.msg}{at}", option=name
        ) from None
    except (OverflowError, RecursionError) as error:
        raise InvalidOption(
            f"{name}: {text!r} is not a regular expression: {error}", option=name
        ) from None
    if not text:
        raise InvalidOption(f"{name} is empty, and matches no topic", option=name)
    return text


def assigned(name: str, text: str) -> dict[str, tuple[int, ...]]:
    """Parse partitions by topic."""
    try:
        parsed = json.loads(text, object_pairs_hook=list)  # to detect a duplicate name
        pairs = [(str(topic), list(numbers)) for topic, numbers in parsed]
        well = bool(pairs) and all(type(n) is int and n >= 0 for _, each in pairs for n in each)
    except (ValueError, TypeError):
        well = False
    if not well or any(not numbers for _, numbers in pairs):
        raise InvalidOption(
            f'{name} takes partitions by topic, such as {{"topic": [0, 2]}}, not {text!r}',
            option=name,
        )
    topics = [topic for topic, _ in pairs]
    for topic, numbers in pairs:
        twice = next((n for n in numbers if numbers.count(n) > 1), None)
        if twice is not None:
            raise InvalidOption(f"{name}: duplicate partition {topic}/{twice}", option=name)
        if topics.count(topic) > 1:
            raise InvalidOption(f"{name}: duplicate topic {topic!r}", option=name)
    return {topic: tuple(sorted(numbers)) for topic, numbers in pairs}


def reading_level(name: str, text: str) -> Isolation:
    """Parse an isolation level of a source."""
    return level(text)


def lake(name: str, text: str) -> str:
    """Parse the source of records that retention has removed from the log."""
    return checked_choice(text.strip().lower(), AUTO, NEVER, ONLY)


def writing_level(name: str, text: str) -> Isolation:
    """Parse the isolation level of a sink: the condition of the leader's acknowledgement."""
    return level(text, PRODUCER_LEVELS)


def offsets(name: str, text: str) -> OffsetSpec:
    """Parse ``earliest``, ``latest``, offsets by topic and partition, or those of a progress."""
    if text.strip().lower() in _WORDS:
        return _WORDS[text.strip().lower()]
    found: Mapping[str, Mapping[int, int]]
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
        for number, offset in places.items():
            if offset < EARLIEST or number < 0:
                raise InvalidOption(
                    f"{name}: {topic}/{number}: an offset is at least 0, or -2 (earliest), or -1"
                    f" (latest), not {offset}",
                    option=name,
                )
    return progress or found


def moment(name: str, text: str) -> Moment:
    """Parse milliseconds since the epoch, or ISO 8601, which is UTC without a zone."""
    found = _moment(text)
    if found is None:
        raise InvalidOption(
            f"{name} takes milliseconds since 1970, or a date or time in ISO 8601"
            f" (2024-02-29, 2024-02-29T12:30:00Z), not {text!r}",
            option=name,
        )
    return found


def moments(name: str, text: str) -> ByTopic:
    """Parse moments by topic and partition."""
    try:
        found = {
            str(topic): {int(number): _moment(at) for number, at in places.items()}
            for topic, places in json.loads(text).items()
        }
    except (ValueError, AttributeError, TypeError):
        found = {}
    said = [(number, at) for places in found.values() for number, at in places.items()]
    if not said or any(number < 0 or at is None for number, at in said):
        raise InvalidOption(
            f'{name} takes {{"topic": {{"0": 1700000000000}}}}, with milliseconds since 1970 or'
            f' ISO 8601 ("2024-02-29T12:30:00Z"), not {text!r}',
            option=name,
        )
    return {
        topic: {number: at for number, at in places.items() if at is not None}
        for topic, places in found.items()
    }


def _moment(said: object) -> Moment | None:
    """Parse a moment: a text, or a number of milliseconds. Return None if it is neither."""
    if isinstance(said, str):
        text = said.strip()
        if text.isascii() and text.removeprefix("-").isdecimal():
            return _moment(int(text)) if len(text) < 20 else None
        try:
            found = datetime.fromisoformat(text)
        except ValueError:
            return None
        return Moment(to_microseconds(found if found.tzinfo else found.replace(tzinfo=UTC)))
    if type(said) is not int or abs(said) > _MILLISECONDS_MAX:
        return None
    return Moment(said * 1000)


def spec_text(spec: OffsetSpec) -> str:
    """Return an option's offsets or moments as text for people."""
    words = {at: word for word, at in _WORDS.items()}
    if isinstance(spec, int | Moment):
        return words.get(spec, str(spec)) if isinstance(spec, int) else str(spec)
    if isinstance(spec, FromProgress):
        return json.dumps(spec.logged)
    return json.dumps(spec, default=str)


def topics_of(spec: OffsetSpec) -> tuple[str, ...]:
    """Return the topics for which an option gives offsets or moments by partition."""
    if isinstance(spec, int | Moment):
        return ()
    return tuple(spec.offsets if isinstance(spec, FromProgress) else spec)


def spec_at(spec: OffsetSpec, topic: str, partition: int) -> OffsetOrTime | None:
    """Return the offset or moment that an option gives for a partition, or None without one."""
    if isinstance(spec, int | Moment):
        return spec
    if isinstance(spec, FromProgress):
        found = spec.offsets.get(topic)
        return None if found is None else found.offsets.get(partition)
    return spec.get(topic, {}).get(partition)


def partitions_of(spec: OffsetSpec) -> set[tuple[str, int]]:
    """Return the partitions for which an option gives a separate offset or moment."""
    if isinstance(spec, int | Moment):
        return set()
    if isinstance(spec, FromProgress):
        return {(name, n) for name, topic in spec.offsets.items() for n in topic.offsets}
    return {(name, n) for name, places in spec.items() for n in places}
