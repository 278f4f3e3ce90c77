"""Where a query starts or ends, as its options say it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from msgspec import Struct

from spark_stream.client.moments import to_microseconds
from spark_stream.datasource.values.offsets import TopicOffsets, from_json
from spark_stream.errors import InvalidOption, InvalidRequest
from spark_stream.structs import INT64_MAX
from spark_stream.wire.messages import EARLIEST, LATEST

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


class Moment(Struct, frozen=True, order=True):
    """A point in time, in microseconds since the epoch: the first record at or after it."""

    microseconds: int

    def __str__(self) -> str:
        try:
            return (_EPOCH + timedelta(microseconds=self.microseconds)).isoformat()
        except OverflowError:  # beyond the years that Python has
            return f"{self.microseconds // 1000} ms"


At = int | Moment
"""An offset, -2 (earliest) or -1 (latest), or a moment."""

ByTopic = Mapping[str, Mapping[int, At]]


class FromProgress(Struct, frozen=True):
    """Streaming offsets as a query's progress shows them; ``logged`` is that JSON, parsed."""

    logged: Mapping[str, Any]
    offsets: Mapping[str, TopicOffsets]


Named = At | ByTopic | FromProgress
"""One place for all partitions, a place by topic and partition, or those of a progress."""

_WORDS: Final = {"earliest": EARLIEST, "latest": LATEST}
_MILLISECONDS_MAX: Final = INT64_MAX // 1000


def offsets(name: str, text: str) -> Named:
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
    """Parse milliseconds since the epoch, or ISO 8601; without a zone it is UTC."""
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
    """Parse a moment: a text, or a number of milliseconds. None if it is neither."""
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


def shown(place: Named) -> str:
    """Return the place as text for people."""
    words = {at: word for word, at in _WORDS.items()}
    if isinstance(place, int | Moment):
        return words.get(place, str(place)) if isinstance(place, int) else str(place)
    if isinstance(place, FromProgress):
        return json.dumps(place.logged)
    return json.dumps(place, default=str)


def topics_of(place: Named) -> tuple[str, ...]:
    """Return the topics that a place names."""
    if isinstance(place, int | Moment):
        return ()
    return tuple(place.offsets if isinstance(place, FromProgress) else place)


def said_at(place: Named, topic: str, partition: int) -> At | None:
    """Return what a place says of a partition; None if nothing."""
    if isinstance(place, int | Moment):
        return place
    if isinstance(place, FromProgress):
        found = place.offsets.get(topic)
        return None if found is None else found.offsets.get(partition)
    return place.get(topic, {}).get(partition)


def partitions_of(place: Named) -> set[tuple[str, int]]:
    """Return the partitions that a place names."""
    if isinstance(place, int | Moment):
        return set()
    if isinstance(place, FromProgress):
        return {(name, n) for name, topic in place.offsets.items() for n in topic.offsets}
    return {(name, n) for name, places in place.items() for n in places}
