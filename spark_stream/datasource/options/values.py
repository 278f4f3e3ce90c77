"""An option's text to its value. Every parser takes the option's name first, for its message."""

from __future__ import annotations

import json
import re
from enum import StrEnum
from typing import Final

from spark_stream.client.connecting.connection import rack_of
from spark_stream.client.topics import checked_topic, level
from spark_stream.client.writing.producer import TIMEOUT_MS_MAX
from spark_stream.consistency.isolation import PRODUCER_LEVELS, Isolation
from spark_stream.datasource.values.content import Replays
from spark_stream.errors import InvalidOption, InvalidTopic
from spark_stream.schema.keys import split_names
from spark_stream.sql.filters import parsed
from spark_stream.structs import INT64_MAX
from spark_stream.wire.limits import QUERY_NAME_LENGTH_MAX, TRANSACTION_TIMEOUT_MS_MAX

SINK_ID_LENGTH_MAX: Final = 200
"""A transactional id has at most 255 characters, and a sink's has a prefix."""

TRANSACTION_TIMEOUT_MS: Final = 120_000
"""The default of ``transactionTimeout``.

It is several times the longest silence of a healthy job, and it bounds how long the transaction of
a dead driver holds back readers of committed records (decision 175).
"""

CONSUMER_LENGTH_MAX: Final = 255
_SECONDS: Final = {"ms": 0.001, "s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0, "d": 86400.0}
_DURATION: Final = re.compile(rf"([0-9]{{1,12}}) *({'|'.join(_SECONDS)})")


class BadRecords(StrEnum):
    """What to do with rows that do not fit their topic."""

    FAIL = "fail"
    DEAD_LETTER = "deadLetter"


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

    Whether it fits the columns shows once the topics are known.
    """
    parsed(text)
    return text


def column_names(name: str, text: str) -> tuple[str, ...]:
    """Parse names of columns with commas between; they are looked up once the topic is known."""
    found = split_names(text)
    if not found:
        raise InvalidOption(f"{name} is empty; it takes columns, such as 'id'", option=name)
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
    """Parse what happens to a replayed batch with other rows."""
    for each in Replays:
        if text.strip().lower() == each.lower():
            return each
    raise InvalidOption(f"{name} takes {' | '.join(Replays)}, not {text!r}", option=name)


def bad_record(name: str, text: str) -> BadRecords:
    """Parse what happens to rows that do not fit their topic."""
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
    """Parse names with commas between, each once."""
    found = tuple(dict.fromkeys(each.strip() for each in text.split(",") if each.strip()))
    if not found:
        raise InvalidOption(
            f"{name} is empty; give one topic, or several with commas between", option=name
        )
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
        parsed = json.loads(text, object_pairs_hook=list)  # to see a name that comes twice
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
            raise InvalidOption(f"{name}: {topic}/{twice} is there twice", option=name)
        if topics.count(topic) > 1:
            raise InvalidOption(f"{name}: topic {topic!r} is there twice", option=name)
    return {topic: tuple(sorted(numbers)) for topic, numbers in pairs}


def reading_level(name: str, text: str) -> Isolation:
    """Parse an isolation level of a source."""
    return level(text)


def writing_level(name: str, text: str) -> Isolation:
    """Parse when a leader acknowledges."""
    return level(text, PRODUCER_LEVELS)
