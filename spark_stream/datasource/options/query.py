"""The checked options of a query: of a source, which selects topics, and of a sink."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Final, Self

from msgspec import Struct, field
from msgspec.structs import replace

from spark_stream.client.topics import matches
from spark_stream.consistency.isolation import Isolation
from spark_stream.datasource.options.names import (
    TOPIC_SETTING,
    check_kind,
    check_names,
    topic_settings,
)
from spark_stream.datasource.options.table import (
    DeclaredSinkOptions,
    DeclaredSourceOptions,
    ParsedOptions,
    Use,
)
from spark_stream.datasource.options.values import (
    BadRecords,
    Moment,
    OffsetSpec,
    partitions_of,
    spec_at,
    topic_names,
    topics_of,
)
from spark_stream.datasource.spark.place import Place, place_of
from spark_stream.datasource.values.limits import Limits, Splitting
from spark_stream.datasource.values.offsets import Offsets, TopicOffsets
from spark_stream.errors import InvalidOption
from spark_stream.schema.keys import PARTITION_BY, split_names
from spark_stream.sql.tree import both
from spark_stream.wire.limits import REQUEST_TIMEOUT_S
from spark_stream.wire.messages import EARLIEST, LATEST

SELECTING: Final = ("subscribe", "subscribePattern", "assign")
"""The options that select topics: a query has exactly one of them."""

STARTING: Final = ("startingTimestamp", "startingOffsetsByTimestamp", "startingOffsets")
ENDING: Final = ("endingTimestamp", "endingOffsetsByTimestamp", "endingOffsets")
"""The first of these that is given takes precedence."""


class Bound(Struct, frozen=True):
    """The start or the end of a query, and the option that set it."""

    option: str
    place: OffsetSpec


class Selection(Struct, frozen=True):
    """``names``: the topics, unless a ``pattern`` (Python's ``re``) selects them.

    ``assigned``: topic → its partitions, unless all of them are read.
    """

    names: tuple[str, ...] = ()
    pattern: str | None = None
    assigned: Mapping[str, tuple[int, ...]] = field(default_factory=dict)

    @property
    def option(self) -> str:
        """The option that makes this selection."""
        if self.pattern is not None:
            return "subscribePattern"
        return "assign" if self.assigned else "subscribe"

    def __str__(self) -> str:
        """Return a text that is the same for all equivalent selections."""
        if self.pattern is not None:
            return f"{self.option} {self.pattern}"
        if self.assigned:
            return f"{self.option} {json.dumps(self.assigned, sort_keys=True)}"
        return f"{self.option} {','.join(sorted(self.names))}"

    def takes_topic(self, name: str) -> bool:
        """Return whether a topic of this name is read."""
        if self.pattern is None:
            return name in self.names
        return matches(self.pattern, name)

    def takes(self, name: str, partition: int) -> bool:
        """Return whether the partition is read, if it exists."""
        return self.takes_topic(name) and (
            not self.assigned or partition in self.assigned.get(name, ())
        )

    def of(self, present: Iterable[str]) -> tuple[str, ...]:
        """Return the present topics to read, and those selected by name whether present or not."""
        if self.pattern is None:
            return self.names
        return tuple(name for name in present if self.takes_topic(name))

    def check_partitions(self, name: str, count: int) -> None:
        """Raise InvalidOption if partitions are assigned that the topic does not have."""
        for number in self.assigned.get(name, ()):
            if number >= count:
                raise InvalidOption(
                    f"assign: topic {name!r} has partitions 0 to {count - 1}, not {number}",
                    option="assign",
                )

    def why_not(self, name: str) -> str | None:
        """Return the reason why a topic is not read, as a predicate, or None if it is read."""
        if self.takes_topic(name):
            return None
        if self.pattern is not None:
            return f"does not match subscribePattern {self.pattern!r}"
        return "is not assigned" if self.assigned else "is not subscribed to"

    def kept(self, offsets: Offsets) -> dict[str, TopicOffsets]:
        """Return the offsets of the selected topics and partitions."""
        found = {}
        for name, topic in offsets.items():
            if self.takes_topic(name):
                kept = {n: at for n, at in topic.offsets.items() if self.takes(name, n)}
                found[name] = topic if kept == topic.offsets else topic.moved(kept)
        return found


class SourceOptions(DeclaredSourceOptions, frozen=True):
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
    """Parse and check a reader's options.

    ``streaming`` is None until Spark has chosen the kind of the query.

    Raises:
        InvalidOption, Unsupported: with the option, its valid values and the given one.
    """
    texts = check_names(given, Use.SOURCE, "source")
    selecting: list[str] = [name for name in SELECTING if name in texts]
    place, short = place_of(texts, names_topic=bool(selecting))
    _check_selecting(selecting, short)
    if streaming is not None:
        check_kind(texts, Use.STREAM_SOURCE if streaming else Use.BATCH_SOURCE)
    options = DeclaredSourceOptions.of(texts)
    selection = _selection(options, short)
    starting = _bound(options, STARTING, options.starting_offsets, selection)
    ending = _bound(options, ENDING, options.ending_offsets, selection)
    if streaming is False and starting.place == LATEST:
        raise InvalidOption(
            "startingOffsets: a batch query cannot start at latest",
            hint="Start at earliest, at offsets or at a time. Only a stream can start at latest.",
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
    if streaming is None:  # no query runs yet: a wrong address is reported soon
        timeout_s = min(timeout_s, REQUEST_TIMEOUT_S)
    return SourceOptions(
        replace(place, timeout_s=timeout_s, rack=options.rack),
        selection,
        starting,
        ending,
        values=options.values,
    )


def _bound(
    options: ParsedOptions, names: tuple[str, ...], offsets: OffsetSpec, selection: Selection
) -> Bound:
    """Return the bound that the options give, or the default of ``offsets``.

    Overridden options are checked too.
    """
    bounds = [Bound(name, options.values[name]) for name in names if name in options]
    for each in bounds:
        _check_selected(each.option, each.place, selection)
    return bounds[0] if bounds else Bound(names[-1], offsets)


def _check_order(starting: Bound, ending: Bound) -> None:
    """Raise InvalidOption if the options alone put the end before the start."""
    start, end = starting.place, ending.place
    if isinstance(start, Moment) and isinstance(end, Moment) and end < start:
        raise InvalidOption(
            f"{ending.option} ({end}) is before {starting.option} ({start})", option=ending.option
        )
    for topic, number in sorted(partitions_of(start) | partitions_of(end)):
        one, other = spec_at(start, topic, number), spec_at(end, topic, number)
        of_offsets = isinstance(one, int) and isinstance(other, int) and 0 <= other < one
        of_times = isinstance(one, Moment) and isinstance(other, Moment) and other < one
        if of_offsets or of_times:
            raise InvalidOption(
                f"{topic}/{number}: {ending.option} ({other}) is before {starting.option} ({one})",
                option=ending.option,
            )


def _check_limits(options: DeclaredSourceOptions) -> None:
    least, most = options.min_offsets_per_trigger, options.max_offsets_per_trigger
    if least is None and "maxTriggerDelay" in options:
        raise InvalidOption(
            "maxTriggerDelay needs minOffsetsPerTrigger: it limits the wait for these records",
            hint="Set minOffsetsPerTrigger too, or leave maxTriggerDelay out.",
            option="maxTriggerDelay",
        )
    if least is not None and most is not None and least > most:
        raise InvalidOption(
            f"minOffsetsPerTrigger ({least}) is greater than maxOffsetsPerTrigger ({most})",
            option="minOffsetsPerTrigger",
        )


def _check_selected(option: str, named: OffsetSpec, selection: Selection) -> None:
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
            f"{', '.join(selecting)}: a query has only one of them; leave the others out",
            option=selecting[1],
        )
    if not selecting and short is None:
        raise InvalidOption(
            "no topic is given: set subscribe, subscribePattern or assign, or call load(topic)",
            option="subscribe",
        )


def _selection(options: DeclaredSourceOptions, short: str | None) -> Selection:
    """Return the selected topics. ``short`` is the topic that was given to ``load``, if any."""
    if options.subscribe_pattern is not None:
        return Selection(pattern=options.subscribe_pattern)
    if options.assign is not None:
        return Selection(tuple(options.assign), assigned=options.assign)
    return Selection(options.subscribe or topic_names("subscribe", short or ""))


class SinkOptions(DeclaredSinkOptions, frozen=True):
    """The checked options of a sink. ``topic`` is None if the column ``topic`` decides."""

    place: Place
    topic_config: tuple[tuple[str, str], ...] = ()


def sink_options(given: Mapping[str, str], *, streaming: bool = True) -> SinkOptions:
    """Parse and check a writer's options.

    Raises:
        InvalidOption, Unsupported: with the option, its valid values and the given one.
    """
    settings, given = topic_settings(given)
    texts = check_names(given, Use.SINK, "sink")
    place, short = place_of(texts, names_topic="topic" in texts)
    if short is not None:
        texts.setdefault("topic", short)
    options = DeclaredSinkOptions.of(texts)
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


def _check_creation(options: DeclaredSinkOptions, settings: Mapping[str, str]) -> None:
    if options.create_topic:
        return
    names = [f"{TOPIC_SETTING}{name}" for name in settings]
    names += [name for name in ("partitions", "replicationFactor") if name in options]
    for name in names:
        raise InvalidOption(f"{name} needs createTopic=true", option=name)


def _check_dead_letters(options: DeclaredSinkOptions) -> None:
    found = options.dead_letter_topic
    if options.on_bad_record is not BadRecords.DEAD_LETTER:
        if found is not None:
            raise InvalidOption(
                "deadLetterTopic needs onBadRecord=deadLetter", option="deadLetterTopic"
            )
        return
    if found is None:
        raise InvalidOption(
            "onBadRecord=deadLetter needs deadLetterTopic, the topic for bad rows",
            option="deadLetterTopic",
        )
    if found == options.topic:
        raise InvalidOption(
            f"deadLetterTopic is {found!r}, the topic that the query writes to",
            option="deadLetterTopic",
            hint="Use a separate topic for dead letters.",
        )


def _partition_by(asked: tuple[str, ...] | None, own: str) -> tuple[str, ...]:
    """Return the columns that place rows. ``own`` is the setting of a new topic."""
    found = split_names(own)
    if asked is not None and asked != found:
        raise InvalidOption(
            f"partitionBy is {','.join(asked)!r} and {TOPIC_SETTING}{PARTITION_BY} is {own!r}",
            option="partitionBy",
            hint="Give only one of them.",
        )
    return found


def _check_identity(options: DeclaredSinkOptions, *, streaming: bool) -> None:
    """Check the options with ``sinkId``: a stream has batch ids, and a batch write has none."""
    for option in ("sinkId", "batchId", "differentReplay", "transactionTimeout"):
        if option in options and not options.transactional:
            raise InvalidOption(f"{option} needs transactional=true", option=option)
    if streaming:
        if "batchId" in options:
            raise InvalidOption(
                "batchId is for a batch write (foreachBatch): a stream has batch ids already",
                option="batchId",
            )
        return
    for option, other in (("sinkId", "batchId"), ("batchId", "sinkId")):
        if option in options and other not in options:
            raise InvalidOption(
                f"{option} without {other}: a batch write needs both to be written exactly once",
                option=other,
            )
    if "differentReplay" in options and "batchId" not in options:
        raise InvalidOption(
            "differentReplay is for a streaming query, or a batch write with sinkId and batchId",
            option="differentReplay",
        )
