"""What a reader is asked for."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, Self

from msgspec import Struct
from msgspec.structs import replace

from spark_stream.datasource.options.checking import check_kind, checked
from spark_stream.datasource.options.places import (
    Moment,
    Named,
    partitions_of,
    said_at,
    topics_of,
)
from spark_stream.datasource.options.table import Given, GivenToSource, Use
from spark_stream.datasource.options.values import topic_names
from spark_stream.datasource.spark.place import Place, place_of
from spark_stream.datasource.values.limits import Limits
from spark_stream.datasource.values.selection import Selection
from spark_stream.datasource.values.tasks import Splitting
from spark_stream.errors import InvalidOption
from spark_stream.sql.writing import both
from spark_stream.wire.limits import REQUEST_TIMEOUT_S
from spark_stream.wire.messages import EARLIEST, LATEST

SELECTING: Final = ("subscribe", "subscribePattern", "assign")
"""The options that say which topics: a query has exactly one of them."""


STARTING: Final = ("startingTimestamp", "startingOffsetsByTimestamp", "startingOffsets")
ENDING: Final = ("endingTimestamp", "endingOffsetsByTimestamp", "endingOffsets")
"""The first of these that is given counts."""


class Bound(Struct, frozen=True):
    """Where a query starts or ends, and the option that says so."""

    option: str
    place: Named


class SourceOptions(GivenToSource, frozen=True):
    """The checked options of a source."""

    place: Place
    selection: Selection
    starting: Bound
    ending: Bound

    def filtered(self, filter: str | None) -> Self:
        """Return the options with one more filter."""
        return replace(self, values={**self.values, "filter": both(self.filter, filter)})

    @property
    def limits(self) -> Limits:
        """The limits of a micro-batch."""
        return Limits(
            max_offsets=self.max_offsets_per_trigger,
            max_bytes=self.max_bytes_per_trigger,
            min_offsets=self.min_offsets_per_trigger,
            max_delay_s=self.max_trigger_delay_s,
        )

    @property
    def splitting(self) -> Splitting:
        """The limits of a task."""
        return Splitting(self.min_partitions, self.max_records_per_partition)


def source_options(given: Mapping[str, str], *, streaming: bool | None = None) -> SourceOptions:
    """Parse and check a reader's options; ``streaming`` is None while that is not known.

    Raises:
        InvalidOption, Unsupported: naming the option, what it takes and what it got.
    """
    texts = checked(given, Use.SOURCE, "source")
    selecting: list[str] = [name for name in SELECTING if name in texts]
    place, short = place_of(texts, names_topic=bool(selecting))
    _check_selecting(selecting, short)
    if streaming is not None:
        check_kind(texts, Use.STREAM_SOURCE if streaming else Use.BATCH_SOURCE)
    options = GivenToSource.of(texts)
    selection = _selection(options, short)
    starting = _bound(options, STARTING, options.starting_offsets, selection)
    ending = _bound(options, ENDING, options.ending_offsets, selection)
    if streaming is False and starting.place == LATEST:
        raise InvalidOption(
            "startingOffsets: a batch query cannot start at latest",
            hint="Start at earliest, at offsets or at a time; a streaming query may start there.",
            option=starting.option,
        )
    if ending.place == EARLIEST:
        raise InvalidOption(
            "endingOffsets: a query cannot end at earliest",
            hint="End at latest, at offsets or at a time.",
            option=ending.option,
        )
    _check_order(starting, ending)
    _check_limits(options)
    timeout_s = options.broker_timeout_s
    if streaming is None:  # nothing runs yet: a wrong address is reported soon
        timeout_s = min(timeout_s, REQUEST_TIMEOUT_S)
    return SourceOptions(
        replace(place, timeout_s=timeout_s, rack=options.rack),
        selection,
        starting,
        ending,
        values=options.values,
    )


def _bound(options: Given, names: tuple[str, ...], offsets: Named, selection: Selection) -> Bound:
    """Return the bound that the options give, or the default of ``offsets``.

    Overridden options are checked as well.
    """
    bounds = [Bound(name, options.values[name]) for name in names if name in options]
    for each in bounds:
        _check_selected(each.option, each.place, selection)
    return bounds[0] if bounds else Bound(names[-1], offsets)


def _check_order(starting: Bound, ending: Bound) -> None:
    """Raise InvalidOption if the end lies before the start, as far as the options alone tell it."""
    start, end = starting.place, ending.place
    if isinstance(start, Moment) and isinstance(end, Moment) and end < start:
        raise InvalidOption(
            f"{ending.option} ({end}) is before {starting.option} ({start})", option=ending.option
        )
    for topic, number in sorted(partitions_of(start) | partitions_of(end)):
        one, other = said_at(start, topic, number), said_at(end, topic, number)
        of_offsets = isinstance(one, int) and isinstance(other, int) and 0 <= other < one
        of_times = isinstance(one, Moment) and isinstance(other, Moment) and other < one
        if of_offsets or of_times:
            raise InvalidOption(
                f"{topic}/{number}: {ending.option} ({other}) is before {starting.option} ({one})",
                option=ending.option,
            )


def _check_limits(options: GivenToSource) -> None:
    least, most = options.min_offsets_per_trigger, options.max_offsets_per_trigger
    if least is None and "maxTriggerDelay" in options:
        raise InvalidOption(
            "maxTriggerDelay is for minOffsetsPerTrigger: how long to wait for that many",
            hint="Set minOffsetsPerTrigger too, or leave maxTriggerDelay out.",
            option="maxTriggerDelay",
        )
    if least is not None and most is not None and least > most:
        raise InvalidOption(
            f"minOffsetsPerTrigger is {least}, and maxOffsetsPerTrigger is {most}: the least cannot"
            " be above the most",
            option="minOffsetsPerTrigger",
        )


def _check_selected(option: str, named: Named, selection: Selection) -> None:
    for topic in topics_of(named):
        why = selection.why_not(topic)
        if why is not None:
            raise InvalidOption(f"{option}: topic {topic!r} {why}", option=option)
    for topic, number in sorted(partitions_of(named)):
        if not selection.takes(topic, number):
            raise InvalidOption(f"{option}: {topic}/{number} is not assigned", option=option)


def _check_selecting(selecting: list[str], short: str | None) -> None:
    if len(selecting) > 1:
        raise InvalidOption(
            f"{' and '.join(selecting)}: give one of the two, to say which topics are read"
            if len(selecting) == 2
            else "subscribe, subscribePattern and assign: give one of the three",
            option=selecting[1],
        )
    if not selecting and short is None:
        raise InvalidOption(
            "which topic? Give subscribe, subscribePattern or assign, or load(topic)",
            option="subscribe",
        )


def _selection(options: GivenToSource, short: str | None) -> Selection:
    """Return the selected topics. ``short`` is the topic that was given to ``load``, if any."""
    if options.subscribe_pattern is not None:
        return Selection(pattern=options.subscribe_pattern)
    if options.assign is not None:
        return Selection(tuple(options.assign), assigned=options.assign)
    return Selection(options.subscribe or topic_names("subscribe", short or ""))
