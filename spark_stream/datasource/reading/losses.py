"""Lost records of a query's range: an error, or one warning, depending on ``failOnDataLoss``.

The losses follow from the log's answers. A topic's id shows that it was created again, the lineages
of the query's offsets show which records were truncated, and the log start offset shows which
records retention removed.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Final

from msgspec.structs import replace

from spark_stream.consistency.replication.epochs import NO_LINEAGE, Lineage, lost_above
from spark_stream.datasource.values.offsets import LogState, Offsets, Range, TopicOffsets
from spark_stream.errors import DataLoss
from spark_stream.loggers import logger_of
from spark_stream.wire.topic_messages import PartitionOffsets

logger = logger_of(__name__)

_NAMED_MAX: Final = 8
"""The maximum number of partitions of a topic in a message."""


class Losses:
    """The losses of one query."""

    def __init__(self, fail: bool) -> None:
        self._fail = fail
        self._reported: set[str] = set()

    def report(self, message: str, **details: str | int) -> None:
        """Raise DataLoss, or warn only once, even if a query meets the loss at every trigger."""
        if self._fail:
            raise DataLoss(message, hint=None, **details)
        if message not in self._reported:
            self._reported.add(message)
            logger.warning(
                "%s; continuing with the remaining records (failOnDataLoss is false)", message
            )

    def kept(self, at: Offsets, now: LogState) -> dict[str, TopicOffsets]:
        """Lower offsets to the ends of their lineages in the log. Report the truncated records.

        ``now`` has the answers about the lineages of ``at``. Topics that were deleted or created
        again keep their offsets.
        """
        found = {}
        for name, topic in at.items():
            latest = now.latest.get(name)
            if latest is None or latest.topic_id != topic.id:
                found[name] = topic
                continue
            offsets = {
                number: self._kept(
                    name, number, offset, topic.lineages.get(number, NO_LINEAGE), latest
                )
                for number, offset in topic.offsets.items()
            }
            found[name] = topic.moved(offsets)
        return found

    def _kept(
        self, name: str, number: int, offset: int, lineage: Lineage, latest: PartitionOffsets
    ) -> int:
        now = latest.partitions.get(number)
        if now is None:
            return offset
        end, present = now.log_end_offset, now.epoch
        if lineage:
            held = dict(now.surviving).get(lineage, end)
            left = lost_above(offset, lineage, held)
        else:  # without a lineage, only records above the log's end are lost for certain
            left = end if end < offset else None
        if left is None:
            return offset
        where = f"{name}/{number}"
        details: dict[str, str | int] = {
            "topic": name,
            "partition": number,
            "leader_epoch": present,
        }
        under = ""
        if lineage:
            details["epoch"] = lineage[-1][0]
            under = f" under leader epoch {lineage[-1][0]}"
        read = f"{where}: the query has read up to offset {offset}{under}"
        if lineage and lineage[-1][0] > present:
            self.report(
                f"{read}, but the log is in epoch {present} and ends at {end}: it was replaced by"
                " an older copy",
                **details,
            )
            return left
        self.report(
            f"{read}, but offsets {left} to {offset - 1} were truncated: the present leader does"
            f" not have them (the log is in epoch {present} and ends at {end})",
            **details,
        )
        return left

    def check_topics(self, start: Offsets, now: LogState) -> None:
        """Report topics of ``start`` that were deleted, or created again."""
        for name in sorted(now.missing):
            self.report_deleted(name, start.get(name))
        for name, latest in now.latest.items():
            before = start.get(name)
            if before is not None and before.id != latest.topic_id:
                self.report_recreated(name, before, latest.topic_id)

    def ends(self, start: Offsets, now: LogState) -> dict[str, TopicOffsets]:
        """Return the offsets up to which the query can read now. Report deleted topics.

        ``start``: the present offsets of the query.
        """
        self.check_topics(start, now)
        ends = {name: start[name] for name in now.missing if name in start}
        for name, latest in now.latest.items():
            before = start.get(name)
            if before is not None and before.id != latest.topic_id:
                before = None
            found = TopicOffsets(latest.topic_id, latest.offsets, latest.lineages)
            ends[name] = found if before is None else _not_below(before, found)
        return ends

    def passed_over(self, at: Offsets, now: LogState) -> Offsets:
        """Return the offsets at which a query that continues after losses finds records again.

        So the records that retention removed take no share of a limit. A query with
        ``failOnDataLoss`` plans the removed records too, and fails.
        """
        if self._fail:
            return at
        found = dict(at)
        for name, topic in at.items():
            latest = now.latest.get(name)
            if latest is not None and latest.topic_id == topic.id:
                left = latest.log_start_offsets
                found[name] = topic.moved(
                    {
                        number: max(offset, left.get(number, 0))
                        for number, offset in topic.offsets.items()
                    }
                )
        return found

    def report_deleted(self, name: str, before: TopicOffsets | None) -> None:
        """Report that the topic was deleted. ``before``: the query's offsets in it."""
        self.report(f"topic {name!r} was deleted{_lost_rest(name, before)}", topic=name)

    def report_recreated(self, name: str, before: TopicOffsets, now: str) -> None:
        """Report that the topic was deleted and created again since the query read it.

        ``now``: its present id.
        """
        self.report(
            f"topic {name!r} was deleted and created again: its id was {before.id}, now it is {now}"
            f"{_lost_rest(name, before)}",
            topic=name,
        )

    def readable(
        self, asked: Iterable[Range], now: LogState, new: Collection[str] = ()
    ) -> list[Range]:
        """Return the ranges without deleted and evicted records. Report these losses.

        Topics that are ``new`` to the query are read from their log start, and that is no loss.
        """
        kept = []
        for each in asked:
            latest = now.latest.get(each.topic)
            details: dict[str, str | int] = {"topic": each.topic, "partition": each.partition}
            if latest is None or latest.topic_id != each.topic_id:
                now_id = None if latest is None else latest.topic_id
                self.report(lost_with_topic(each, each.start, now_id), **details)
                continue
            now_there = latest.partitions.get(each.partition)
            first = 0 if now_there is None else now_there.log_start_offset
            start = each.start
            if start < first and each.topic in new:
                start = first
            if start < first:
                self.report(removed_by_retention(each, start, first), **details)
                start = first
            if start < each.end:
                kept.append(replace(each, start=start))
        return kept


def _not_below(before: TopicOffsets, bounds: TopicOffsets) -> TopicOffsets:
    """Return the bounds, raised to the offsets before: another level may have returned more."""
    above = {n: at for n, at in before.offsets.items() if at > bounds.offsets.get(n, at)}
    lineages = {n: before.lineages.get(n, NO_LINEAGE) for n in above}
    return TopicOffsets(bounds.id, {**bounds.offsets, **above}, {**bounds.lineages, **lineages})


def _lost_rest(name: str, before: TopicOffsets | None) -> str:
    """Describe the unread records of a deleted topic, as the end of the message about it."""
    if before is None or not before.offsets:
        return ""
    places = [f"offset {offset} of {name}/{n}" for n, offset in sorted(before.offsets.items())]
    more = len(places) - _NAMED_MAX
    if more > 0:
        places = [*places[:_NAMED_MAX], f"{more} partitions more"]
    return f"; its records from {', '.join(places)} on are lost"


def lost_with_topic(asked: Range, first: int, now_id: str | None) -> str:
    """Return the message about a range, from ``first`` on, of a topic deleted or created again."""
    recreated = (
        f" and created again: its id was {asked.topic_id}, now it is {now_id}" if now_id else ""
    )
    return (
        f"{asked.topic}/{asked.partition}: offsets {first} to {asked.end - 1} are lost: their"
        f" topic was deleted{recreated}"
    )


def removed_by_retention(asked: Range, first: int, left: int) -> str:
    """Return the message about a range of which retention removed the records before ``left``."""
    return (
        f"{asked.topic}/{asked.partition}: offsets {first} to {min(left, asked.end) - 1} were"
        f" removed by retention; the log now starts at {left}"
    )
