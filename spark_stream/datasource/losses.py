"""Records of a query's range that are gone: an error, or one warning, as ``failOnDataLoss`` says.

Everything here is known from the log's answers, not guessed: a topic that was made anew by its id,
records that were cut off by the leader epoch that the query's offsets carry, what retention removed
by the first offset that is left.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from dataclasses import replace

from spark_stream.client.values import PartitionOffsets
from spark_stream.datasource.offsets import Found, Offsets, Range, TopicOffsets
from spark_stream.errors import DataLoss

logger = logging.getLogger(__name__)


class Losses:
    """The losses of one query."""

    def __init__(self, fail: bool) -> None:
        self._fail = fail
        self._told: set[str] = set()

    def report(self, message: str, **details: str | int) -> None:
        """DataLoss, or a warning: once, though a query may come to it at every trigger."""
        if self._fail:
            raise DataLoss(message, hint=None, **details)
        if message not in self._told:
            self._told.add(message)
            logger.warning("%s; going on with what is left (failOnDataLoss is false)", message)

    def kept(self, at: Offsets, now: Found) -> dict[str, TopicOffsets]:
        """The offsets, none above the place where its leader epoch ended; reports what was cut off.

        ``now`` has been asked for the epochs of ``at``. Topics that are not as they were stay as
        they are in ``at``.
        """
        found = {}
        for name, topic in at.items():
            latest = now.latest.get(name)
            if latest is None or latest.topic_id != topic.id:
                found[name] = topic
                continue
            offsets = {
                number: self._kept(name, number, offset, topic.epochs.get(number, 0), latest)
                for number, offset in topic.offsets.items()
            }
            found[name] = topic.moved(offsets)
        return found

    def _kept(
        self, name: str, number: int, offset: int, epoch: int, latest: PartitionOffsets
    ) -> int:
        ends = latest.epoch_ends.get(number)
        if ends is None:
            return offset
        end, present = ends[epoch], latest.epochs[number]
        where = f"{name}/{number}"
        details: dict[str, str | int] = {
            "topic": name,
            "partition": number,
            "epoch": epoch,
            "leader_epoch": present,
        }
        if epoch > present:
            self.report(
                f"{where}: the query has read up to offset {offset} under leader epoch {epoch}, but"
                f" the log is in epoch {present} and ends at {end}: an older copy of it is in its"
                " place",
                **details,
            )
            return min(offset, end)
        if offset <= end:
            return offset
        self.report(
            f"{where}: the query has read up to offset {offset} under leader epoch {epoch}, but"
            f" offsets {end} to {offset - 1} were cut off: that epoch ended at {end} (the log is in"
            f" epoch {present} and ends at {latest.log_end_offsets[number]})",
            **details,
        )
        return end

    def ends(self, start: Offsets, now: Found) -> dict[str, TopicOffsets]:
        """How far the query can read now, given where it is; reports topics that are gone."""
        for name in sorted(now.missing):
            self.deleted(name)
        ends = {name: start[name] for name in now.missing if name in start}
        for name, latest in now.latest.items():
            before = start.get(name)
            if before is not None and before.id != latest.topic_id:
                self.made_anew(name, before.id, latest.topic_id)
                before = None
            known = {} if before is None else before.offsets
            # What was read lies above the bound where the level was another one before.
            offsets = {
                number: max(bound, known.get(number, 0)) for number, bound in latest.offsets.items()
            }
            ends[name] = TopicOffsets(latest.topic_id, offsets, latest.epochs)
        return ends

    def deleted(self, name: str) -> None:
        """The topic is not there."""
        self.report(f"topic {name!r} was deleted", topic=name)

    def made_anew(self, name: str, before: str, now: str) -> None:
        """The topic was deleted and made again since the query read it."""
        self.report(
            f"topic {name!r} was deleted and made anew: its id was {before}, now it is {now}",
            topic=name,
        )

    def readable(self, asked: Iterable[Range], now: Found) -> list[Range]:
        """The ranges less what retention removed or what was deleted; reports that."""
        kept = []
        for each in asked:
            latest = now.latest.get(each.topic)
            where = f"{each.topic}/{each.partition}"
            details: dict[str, str | int] = {"topic": each.topic, "partition": each.partition}
            if latest is None or latest.topic_id != each.topic_id:
                self.report(gone_with_topic(each, each.start), **details)
                continue
            first = latest.log_start_offsets.get(each.partition, 0)
            start = each.start
            if start < first:
                self.report(
                    f"{where}: offsets {start} to {min(first, each.end) - 1} were removed by"
                    f" retention; the first left is {first}",
                    **details,
                )
                start = first
            if start < each.end:
                kept.append(replace(each, start=start))
        return kept


def gone_with_topic(asked: Range, first: int) -> str:
    """The message about a range, from ``first`` on, whose topic was deleted."""
    return (
        f"{asked.topic}/{asked.partition}: offsets {first} to {asked.end - 1} went with their"
        " topic, which was deleted"
    )
