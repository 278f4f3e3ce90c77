"""What a reader is asked for."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from spark_stream.consistency.isolation import Isolation
from spark_stream.datasource.options.checking import Given, check_kind, checked
from spark_stream.datasource.options.places import (
    Moment,
    Named,
    partitions_of,
    said_at,
    topics_of,
)
from spark_stream.datasource.options.table import Use
from spark_stream.datasource.options.values import topic_names
from spark_stream.datasource.spark.place import Place, place_of
from spark_stream.datasource.values.limits import NO_LIMITS, Limits
from spark_stream.datasource.values.selection import Selection
from spark_stream.datasource.values.tasks import NO_SPLITTING, Splitting
from spark_stream.errors import InvalidOption
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


FROM_EARLIEST: Final = Bound("startingOffsets", EARLIEST)
TO_LATEST: Final = Bound("endingOffsets", LATEST)


class SourceOptions(Struct, frozen=True):
    """What a reader was asked for."""

    place: Place
    selection: Selection
    isolation: Isolation = Isolation.READ_UNCOMMITTED
    starting: Bound = FROM_EARLIEST
    ending: Bound = TO_LATEST
    limits: Limits = NO_LIMITS
    splitting: Splitting = NO_SPLITTING
    fail_on_data_loss: bool = True
    include_headers: bool = False
    include_metadata: bool = False
    consumer: str | None = None
    filter: str | None = None
    push_filters: bool = False
    mapped_reads: bool = True


def source_options(given: Mapping[str, str], *, streaming: bool | None = None) -> SourceOptions:
    """Parse and check a reader's options; ``streaming`` is None while that is not known.

    Raises:
        InvalidOption, Unsupported: naming the option, what it takes and what it got.
    """
    options = checked(given, Use.SOURCE, "source")
    selecting = [name for name in SELECTING if name in options]
    place, short = place_of(options.texts, names_topic=bool(selecting))
    selection = _selection(options, selecting, short)
    if streaming is not None:
        check_kind(options, Use.STREAM_SOURCE if streaming else Use.BATCH_SOURCE)
    starting = _bound(options, STARTING, selection)
    ending = _bound(options, ENDING, selection)
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
    timeout_s = options.value("brokerTimeout")
    if streaming is None:  # nothing runs yet: a wrong address is reported soon
        timeout_s = min(timeout_s, REQUEST_TIMEOUT_S)
    return SourceOptions(
        place=replace(place, timeout_s=timeout_s, rack=options.value("rack")),
        selection=selection,
        isolation=options.value("isolation"),
        starting=starting,
        ending=ending,
        limits=_limits(options),
        splitting=Splitting(
            options.value("minPartitions"), options.value("maxRecordsPerPartition")
        ),
        fail_on_data_loss=options.value("failOnDataLoss"),
        include_headers=options.value("includeHeaders"),
        include_metadata=options.value("includeMetadata"),
        consumer=options.value("consumer"),
        filter=options.value("filter"),
        push_filters=options.value("pushFilters"),
        mapped_reads=options.value("mappedReads"),
    )


def _bound(options: Given, names: tuple[str, ...], selection: Selection) -> Bound:
    """Return the bound that the options give; overridden options are checked as well."""
    bounds = [Bound(name, options.value(name)) for name in names if name in options]
    for each in bounds:
        _check_selected(each.option, each.place, selection)
    return bounds[0] if bounds else Bound(names[-1], options.value(names[-1]))


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


def _limits(options: Given) -> Limits:
    least, most = options.value("minOffsetsPerTrigger"), options.value("maxOffsetsPerTrigger")
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
    return Limits(
        max_offsets=most,
        max_bytes=options.value("maxBytesPerTrigger"),
        min_offsets=least,
        max_delay_s=options.value("maxTriggerDelay"),
    )


def _check_selected(option: str, named: Named, selection: Selection) -> None:
    for topic in topics_of(named):
        why = selection.why_not(topic)
        if why is not None:
            raise InvalidOption(f"{option}: topic {topic!r} {why}", option=option)
    for topic, number in sorted(partitions_of(named)):
        if not selection.takes(topic, number):
            raise InvalidOption(f"{option}: {topic}/{number} is not assigned", option=option)


def _selection(options: Given, selecting: list[str], short: str | None) -> Selection:
    """Return which topics to read; ``short`` is the topic that was given to ``load``, if any."""
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
    if selecting == ["subscribePattern"]:
        return Selection(pattern=options.value("subscribePattern"))
    if selecting == ["assign"]:
        assigned = options.value("assign")
        return Selection(tuple(assigned), assigned=assigned)
    return Selection(topic_names("subscribe", options.texts.get("subscribe", short or "")))
