"""The offsets of a query's start and end, from options: words, numbers, times or a progress."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping

from msgspec import Struct

from spark_stream.consistency.replication.epochs import Lineage
from spark_stream.datasource.options.query import Bound, SourceOptions
from spark_stream.datasource.options.values import (
    FromProgress,
    Moment,
    OffsetOrTime,
    OffsetSpec,
    spec_at,
    topics_of,
)
from spark_stream.datasource.reading.planning import Planner
from spark_stream.datasource.values.offsets import Offsets, TopicOffsets, known_offsets
from spark_stream.errors import InvalidOption, OffsetOutOfRange, UnknownTopic
from spark_stream.loggers import logger_of
from spark_stream.wire.messages import EARLIEST, LATEST
from spark_stream.wire.topic_messages import PartitionOffsets

logger = logger_of(__name__)


class ResolvedOffsets(Struct, frozen=True):
    """The present offsets of an option. ``moving``: a later look-up may differ."""

    offsets: dict[str, TopicOffsets]
    moving: bool


def resolve(planner: Planner, bound: Bound, unnamed: int) -> ResolvedOffsets:
    """Return the present offsets of an option. Partitions left out take ``unnamed``.

    Offsets of a progress keep their lineages. A moment after which there is no record resolves to
    the bound of the isolation level, as "latest" does.

    Raises:
        UnknownTopic: There is no such topic.
        InvalidOption: The topic does not have a partition.
        OffsetOutOfRange: An offset is above the log's end, and ``failOnDataLoss`` is set.
        DataLoss: A topic of a progress was deleted or created again, and ``failOnDataLoss`` is set.
        WrongCluster: The progress is of a query on another log.
    """
    option, place = bound.option, bound.place
    if isinstance(place, FromProgress):
        planner.check_log(place.logged, option)
    present = _present(planner, option, place)
    found: dict[str, TopicOffsets] = {}
    moving = place == LATEST
    for name, now in present.items():
        bounds = now.offsets
        known: OffsetSpec = place
        seen: Mapping[int, Lineage] = {}
        if isinstance(place, FromProgress):
            known, seen = _of_progress(planner, name, place, now.topic_id)
        wanted = _wanted(option, name, known, now, unnamed)
        offsets = _offsets(planner, option, name, wanted, now, lineages=bool(seen))
        reached = {
            n: each
            for n, each in now.lineages.items()
            if each and (offsets[n] == bounds[n] or offsets[n] >= each[-1][1])
        }
        found[name] = TopicOffsets(now.topic_id, offsets, {**reached, **seen})
        if not isinstance(place, FromProgress):
            moving = moving or any(
                _moves(at, offsets[number], bounds[number]) for number, at in wanted.items()
            )
    return ResolvedOffsets(found, moving)


def check_order(options: SourceOptions, start: Offsets, end: Offsets) -> None:
    """Raise InvalidOption if a partition ends before it starts, unless the end is ``latest``.

    The level's bound, which is the meaning of "latest", may be below the start. The query then
    reads no records.
    """
    starting, ending = options.starting, options.ending
    for name, topic in end.items():
        known = known_offsets(start, name, topic.id)
        for number, last in topic.offsets.items():
            said = spec_at(ending.place, name, number)
            if said in (None, LATEST) or last >= known.get(number, 0):
                continue
            raise InvalidOption(
                f"{name}/{number}: the query would end ({ending.option}) at offset {last}, before"
                f" it starts ({starting.option}), at offset {known[number]}",
                option=ending.option,
            )


def _moves(said: OffsetOrTime, offset: int, bound: int) -> bool:
    """Return whether the offset or moment of a partition may resolve to another offset later."""
    if isinstance(said, Moment):
        return offset >= bound
    return said == LATEST or (said >= 0 and said != offset)


def _present(planner: Planner, option: str, place: OffsetSpec) -> dict[str, PartitionOffsets]:
    """Look up the present offsets of the selected topics."""
    found = dict(planner.latest().latest)
    selection = planner.selection
    for name in selection.names:
        if name not in found:  # raises, unless the topic was created in between
            found[name] = planner.topics.offsets(name, isolation=planner.options.isolation)
    for name in topics_of(place):
        if name not in found:
            if not isinstance(place, FromProgress):
                raise UnknownTopic(f"{option}: there is no topic {name!r}", topic=name)
            planner.losses.report_deleted(name, place.offsets[name])
    return found


def _wanted(
    option: str, name: str, place: OffsetSpec, now: PartitionOffsets, unnamed: int
) -> dict[int, OffsetOrTime]:
    """Return the offset or moment of each partition of the topic."""
    if isinstance(place, Mapping):
        for number in place.get(name, ()):
            if number not in now.partitions:
                raise InvalidOption(
                    f"{option}: topic {name!r} has partitions 0 to {len(now.partitions) - 1}, not"
                    f" {number}",
                    option=option,
                )
    wanted = {}
    for number in now.partitions:
        said = spec_at(place, name, number)
        wanted[number] = unnamed if said is None else said
    return wanted


def _offsets(
    planner: Planner,
    option: str,
    name: str,
    wanted: Mapping[int, OffsetOrTime],
    now: PartitionOffsets,
    *,
    lineages: bool,
) -> dict[int, int]:
    """Return the offsets of the places.

    With ``lineages`` they are not checked against the log's end.
    """
    found: dict[int, int] = {}
    by_moment: dict[Moment, list[int]] = defaultdict(list)
    for number, at in wanted.items():
        if isinstance(at, Moment):
            by_moment[at].append(number)
        elif at == EARLIEST:
            found[number] = planner.first_offset(name, number, now)
        elif at == LATEST:
            found[number] = now.partitions[number].offset
        else:
            found[number] = at if lineages else _within(planner, option, name, number, at, now)
    for moment, numbers in by_moment.items():
        at_moment = planner.offsets_at(name, moment.microseconds, numbers)
        # Later records than the bounds are left for later, so that a cut stays a cut.
        found |= {n: min(at, now.partitions[n].offset) for n, at in at_moment.items()}
    return dict(sorted(found.items()))


def _of_progress(
    planner: Planner, name: str, place: FromProgress, topic_id: str
) -> tuple[OffsetSpec, Mapping[int, Lineage]]:
    """Return the topic's offsets in a progress, and their lineages."""
    topic = place.offsets.get(name)
    if topic is None:
        return {}, {}
    if topic.id != topic_id:
        planner.losses.report_recreated(name, topic, topic_id)
        return {}, {}
    return {name: topic.offsets}, topic.lineages


def _within(
    planner: Planner, option: str, name: str, number: int, offset: int, now: PartitionOffsets
) -> int:
    present = now.partitions[number]
    end = present.log_end_offset
    if offset <= end:
        return offset
    message = f"{option}: {name}/{number}: offset {offset} is above the log's end, which is {end}"
    if planner.options.fail_on_data_loss:
        raise OffsetOutOfRange(
            message,
            hint=f"Give an offset from {present.log_start_offset} to {end}, or set"
            " failOnDataLoss to false to continue from the log's end.",
            topic=name,
            partition=number,
            asked=offset,
            log_end_offset=end,
        )
    logger.warning("%s; continuing from the log's end (failOnDataLoss is false)", message)
    return end
