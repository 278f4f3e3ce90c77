"""Which offsets ``consume`` reads, and how: up to an end, or without end."""

from __future__ import annotations

import re
import signal
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from types import FrameType
from typing import Final

import pyarrow as pa
from msgspec import Struct

from spark_stream.client.reading.columns import View
from spark_stream.client.reading.fetching import Source
from spark_stream.client.reading.loop import Asked, Feed
from spark_stream.client.reading.positions import Place, resolve
from spark_stream.client.reading.ranges import check_place, read_range
from spark_stream.client.topics import TopicsClient
from spark_stream.consistency.isolation import Isolation
from spark_stream.errors import InvalidOption, UnknownPartition

_UNITS: Final = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days"}
_AGO: Final = re.compile(rf"([0-9]+)([{''.join(_UNITS)}])")


def place_of(option: str, text: str) -> Place:
    """Parse a place as a user writes it: a name, an offset (-N: N before the end), or a moment.

    A moment is ISO 8601, without a zone in UTC, or how long ago it was: ``90s``, ``1h``.
    """
    if text in ("earliest", "latest"):
        return text
    if text.removeprefix("-").isdecimal():
        return int(text)
    try:
        if ago := _AGO.fullmatch(text):
            return datetime.now(UTC) - timedelta(**{_UNITS[ago[2]]: int(ago[1])})
        moment = datetime.fromisoformat(text)
        moment = moment if moment.tzinfo else moment.replace(tzinfo=UTC)
        moment.astimezone(UTC)  # some near the years 1 and 9999 have no UTC
        return moment
    except (ValueError, OverflowError):
        raise InvalidOption(
            f"{option} takes earliest, latest, an offset or a moment, not {text!r}",
            hint="A moment is 2024-05-01 or 2024-05-01T12:30:00Z, or an age such as 30m, 1h or 2d.",
            option=option,
        ) from None


def check_order(start: Place, end: Place | None) -> None:
    """Raise InvalidOption if the range ends before it starts, whatever the log holds."""
    if end == "earliest":
        raise InvalidOption(
            "--to earliest: nothing is before the first record",
            hint="Give latest, an offset or a moment.",
            option="--to",
        )
    if isinstance(start, int) and isinstance(end, int):
        turned = (start < 0) == (end < 0) and end < start
    elif isinstance(start, datetime) and isinstance(end, datetime):
        turned = end.astimezone(UTC) < start.astimezone(UTC)
    else:
        turned = False
    if turned:
        raise InvalidOption(
            f"the range would end (--to {end}) before it starts (--from {start})",
            hint="Swap the two, or leave --to out.",
            option="--to",
        )


class Span(Struct, frozen=True):
    """Offsets of one partition; ``end`` is exclusive, None means without end."""

    source: Source
    start: int
    end: int | None


class RangeRequest(Struct, frozen=True):
    """What to read of a topic. No ``end``: up to the isolation's bound, or on with ``follow``."""

    topic: str
    isolation: Isolation
    partitions: tuple[int, ...]
    start: Place
    end: Place | None
    follow: bool

    def spans(self, topics: TopicsClient, view: View) -> list[Span]:
        """Return the offsets to read of each partition, as they are now.

        Raises:
            UnknownPartition: a partition that was asked for does not exist.
        """
        known = topics.describe(self.topic)
        count = len(known.partitions)
        for number in self.partitions:
            if number >= count:
                raise UnknownPartition(
                    f"topic {self.topic!r} has partitions 0 to {count - 1}, not {number}",
                    topic=self.topic,
                    partition=number,
                )
        starts = self._resolved(topics, self.start)
        end = "latest" if self.end is None and not self.follow else self.end
        ends = {} if end is None else self._resolved(topics, end)
        return [
            Span(
                Source(topics.router, view, known.id, number, self.isolation),
                starts[number],
                ends.get(number),
            )
            for number in sorted(set(self.partitions) or range(count))
        ]

    def _resolved(self, topics: TopicsClient, place: Place) -> Mapping[int, int]:
        if not isinstance(place, int) or place >= 0:
            return resolve(topics, self.topic, place, self.isolation, "earliest")
        last = topics.offsets(self.topic, isolation=self.isolation)
        first = last.log_start_offsets
        return {number: max(first[number], at + place) for number, at in last.offsets.items()}


def bounded(spans: list[Span]) -> Iterator[pa.RecordBatch]:
    """Yield all that is visible, partition by partition, at most up to the isolation's bound."""
    for span in spans:
        assert span.end is not None
        if (
            span.start > span.end
        ):  # empty; but an offset that never existed is an error, which the leader finds
            check_place(span.source, span.start, span.end)
        for fetched in read_range(span.source, span.start, span.end):
            if fetched.batch.num_rows:
                yield fetched.batch


def followed(spans: list[Span], idle: Callable[[], None]) -> Iterator[pa.RecordBatch]:
    """Yield batches of all partitions as they come; Ctrl-C or SIGTERM ends this between batches.

    ``idle`` is called from time to time while nothing comes.
    """
    feed = Feed(
        [
            Asked(
                (span.source.view.topic, span.source.partition), span.source, span.start, span.end
            )
            for span in spans
        ]
    )
    try:
        with _interruptible() as interrupt:
            while feed.running and not interrupt.asked:
                try:
                    with interrupt.at_once():
                        found = feed.take()
                except KeyboardInterrupt:
                    return
                if found is None:
                    idle()
                elif found[1].batch.num_rows:
                    yield found[1].batch
    finally:
        feed.stop()


class _Interrupt:
    """Signals: the first lets the current batch be written, the second interrupts it."""

    def __init__(self) -> None:
        self.asked = False
        self._at_once = False

    def handle(self, number: int, frame: FrameType | None) -> None:
        if self._at_once or self.asked:
            raise KeyboardInterrupt
        self.asked = True

    @contextmanager
    def at_once(self) -> Iterator[None]:
        """Let a signal interrupt at once inside the block."""
        self._at_once = True
        try:
            yield
        finally:
            self._at_once = False


@contextmanager
def _interruptible() -> Iterator[_Interrupt]:
    interrupt = _Interrupt()
    numbers = (signal.SIGINT, signal.SIGTERM)
    before = [signal.signal(number, interrupt.handle) for number in numbers]
    try:
        yield interrupt
    finally:
        for number, handler in zip(numbers, before, strict=True):
            signal.signal(number, handler)
