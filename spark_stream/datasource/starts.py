"""Where a query starts and ends by its options: words, numbers or a progress, to offsets."""

from __future__ import annotations

import logging
from collections.abc import Mapping

from spark_stream.client.reading.positions import named_resolved
from spark_stream.client.values import PartitionOffsets
from spark_stream.consistency.lineage import Lineage
from spark_stream.datasource.offsets import TopicOffsets
from spark_stream.datasource.options import FromProgress, Named
from spark_stream.datasource.planning import Planner
from spark_stream.errors import InvalidOption, OffsetOutOfRange
from spark_stream.wire.messages import LATEST

logger = logging.getLogger(__name__)


def resolved(planner: Planner, option: str, place: Named, unnamed: int) -> dict[str, TopicOffsets]:
    """The offsets that the option means now; partitions left out take ``unnamed``.

    Offsets of a progress keep their lineages.

    Raises:
        UnknownTopic: there is no such topic.
        InvalidOption: a partition that the topic does not have.
        OffsetOutOfRange: an offset above the log's end, where ``failOnDataLoss`` is set.
        DataLoss: a progress of a topic that was made anew since, likewise.
        WrongCluster: a progress of a query on another log.
    """
    options = planner.options
    if isinstance(place, FromProgress):
        planner.check_log(place.logged, option)
    bounds = planner.latest().latest if planner.atomic else {}
    found = {}
    for name in options.topics:
        now = bounds.get(name) or planner.topics.offsets(name, isolation=options.isolation)
        seen: Mapping[int, Lineage] = {}
        if isinstance(place, FromProgress):
            named, seen = _of_progress(planner, name, place, now.topic_id)
        else:
            named = {} if isinstance(place, int) else place.get(name, {})
        default = place if isinstance(place, int) else unnamed
        wanted = dict.fromkeys(now.offsets, default)
        for number in named:
            if number not in wanted:
                raise InvalidOption(
                    f"{option}: topic {name!r} has partitions 0 to {len(wanted) - 1}, not {number}",
                    option=option,
                )
        wanted |= named
        if not seen:  # else the lineages tell, and more
            wanted = {
                number: _within(planner, option, name, number, offset, now)
                for number, offset in wanted.items()
            }
        if name in bounds:  # "latest" is where a cut through all topics stands
            wanted = {
                number: now.offsets[number] if offset == LATEST else offset
                for number, offset in wanted.items()
            }
        offsets = named_resolved(planner.topics, name, wanted, options.isolation)
        reached = {
            n: each
            for n, each in now.lineages.items()
            if each and (offsets[n] == now.offsets[n] or offsets[n] >= each[-1][1])
        }
        found[name] = TopicOffsets(now.topic_id, offsets, {**reached, **seen})
    return found


def moves(place: Named, found: Mapping[str, TopicOffsets]) -> bool:
    """Whether the start would be another one if it were asked for later."""
    if isinstance(place, FromProgress):
        return False
    if isinstance(place, int):
        return place == LATEST
    return any(
        offset == LATEST or (offset >= 0 and found[name].offsets[number] != offset)
        for name, places in place.items()
        for number, offset in places.items()
    )


def _of_progress(
    planner: Planner, name: str, place: FromProgress, topic_id: str
) -> tuple[Mapping[int, int], Mapping[int, Lineage]]:
    """What a progress says of the topic: offsets and their lineages."""
    topic = place.offsets.get(name)
    if topic is None:
        return {}, {}
    if topic.id != topic_id:
        planner.losses.made_anew(name, topic.id, topic_id)
        return {}, {}
    return topic.offsets, topic.lineages


def _within(
    planner: Planner, option: str, name: str, number: int, offset: int, now: PartitionOffsets
) -> int:
    end = now.log_end_offsets[number]
    if offset <= end:
        return offset
    message = f"{option}: {name}/{number}: offset {offset} is above the log's end, which is {end}"
    if planner.options.fail_on_data_loss:
        raise OffsetOutOfRange(
            message,
            hint=f"Give an offset from {now.log_start_offsets[number]} to {end}, or set"
            " failOnDataLoss to false to go on from the log's end.",
            topic=name,
            partition=number,
            asked=offset,
            log_end_offset=end,
        )
    logger.warning("%s; going on from there (failOnDataLoss is false)", message)
    return end
