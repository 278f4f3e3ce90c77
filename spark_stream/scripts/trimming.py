"""Move the log start of a topic's partitions: no reader gets a record below it again.

The new log start is on the partition's record, not in a log. So it holds at every replica, at one
that is down, and at every later leader. Each replica hides the records as soon as it sees the
record, and housekeeping removes the segments that have no other records.

A log start is at most the last stable offset. The leader of the record's epoch reports that offset,
and the compare-and-set on the record rests on the same epoch.

Source: Kafka's DeleteRecords (KIP-107). There each replica stores its log start, and a follower
gets it with its next fetch.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from spark_stream.cluster.partitions import PartitionId, StoredPartition
from spark_stream.cluster.topics import Topic
from spark_stream.consistency.control import election
from spark_stream.consistency.control.election import Obstacle, Unchanged
from spark_stream.consistency.control.partition_record import PartitionRecord
from spark_stream.consistency.ids import Offset
from spark_stream.consistency.transactions.transactions import Joined
from spark_stream.errors import IsologError, LeaderUnavailable, OffsetOutOfRange
from spark_stream.scripts.moving import change_records
from spark_stream.scripts.steps import Describe, Described, Pause, Refresh, Script, together

_TRIES: Final = 10
_LOOKS: Final = 200
_PAUSE_S: Final = 0.05


def trim(
    topic: Topic,
    before: Mapping[int, int],
    find: Callable[[PartitionId], StoredPartition | None],
    *,
    dry_run: bool = False,
) -> Script[dict[int, int]]:
    """Trim each partition below its offset, and return the resulting log starts.

    ``find`` looks a record up in this broker's view. A log start never moves back: a partition that
    starts above its offset stays as it is. ``dry_run``: only check the offsets, and return the
    present log starts.

    Raises:
        OffsetOutOfRange: An offset is above the last stable offset. No partition was trimmed.
        LeaderUnavailable, NotLeader: A partition has no leader that can confirm the offset, or it
            has not applied its new log start yet.
    """
    wanted = {PartitionId(topic.id, number): Offset(at) for number, at in before.items()}
    left = wanted
    yield Refresh()
    for _ in range(_TRIES):
        seen = yield from _described(topic, left)
        for each, at in left.items():
            _check_stable(topic, each.number, at, seen[each])
        if dry_run:
            return _log_starts(seen)

        def change(each: PartitionId, record: PartitionRecord, /) -> election.Outcome:
            return election.trim(record, seen[each].leader_epoch, wanted[each])  # noqa: B023

        outcomes = yield from change_records(list(left), find, change)
        left = {
            each: at
            for each, at in left.items()
            if isinstance(outcome := outcomes.get(each), Unchanged)
            and outcome.why is Obstacle.ANOTHER_EPOCH
        }
        if not left:
            return (yield from _applied(topic, wanted))
        yield Pause(_PAUSE_S)
        yield Refresh()
    raise _not_confirmed(topic, next(iter(left)).number)


def _described(
    topic: Topic, partitions: Mapping[PartitionId, Offset]
) -> Script[dict[PartitionId, Described]]:
    steps = [Describe(Joined(topic.name, topic.id, each.number)) for each in partitions]
    found: dict[PartitionId, Described] = {}
    for each, answer in zip(partitions, (yield from together(steps)), strict=True):
        if isinstance(answer, IsologError):
            raise answer
        found[each] = answer
    return found


def _check_stable(topic: Topic, number: int, at: Offset, seen: Described) -> None:
    if at <= seen.bounds.last_stable_offset:
        return
    if not seen.hw_known:
        raise _not_confirmed(topic, number)
    stable = int(seen.bounds.last_stable_offset)
    raise OffsetOutOfRange(
        f"{topic.name}/{number}: a trim to offset {at} is above the last stable offset {stable}",
        hint="Trim at most to the last stable offset: later records are not replicated yet, or"
        " belong to an open transaction.",
        topic=topic.name,
        partition=number,
        asked=int(at),
        last_stable_offset=stable,
    )


def _applied(topic: Topic, wanted: Mapping[PartitionId, Offset]) -> Script[dict[int, int]]:
    """Wait until the leaders have applied the log starts on record."""
    for _ in range(_LOOKS):
        seen = yield from _described(topic, wanted)
        behind = [each for each, at in wanted.items() if seen[each].bounds.log_start_offset < at]
        if not behind:
            break
        yield Pause(_PAUSE_S)
        yield Refresh()
    else:
        raise _not_confirmed(topic, behind[0].number)
    return _log_starts(seen)


def _log_starts(seen: Mapping[PartitionId, Described]) -> dict[int, int]:
    return {each.number: int(found.bounds.log_start_offset) for each, found in seen.items()}


def _not_confirmed(topic: Topic, number: int) -> LeaderUnavailable:
    return LeaderUnavailable(
        f"{topic.name}/{number}: its leader has not confirmed the new log start yet",
        topic=topic.name,
        partition=number,
    )
