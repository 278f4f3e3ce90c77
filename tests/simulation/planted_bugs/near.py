"""Reads at a follower: its permitted answers, and their meaning."""

from __future__ import annotations

from typing import Any

from msgspec import structs

from isolog.errors import IsologError
from spark_stream.broker.partition.partition import Partition
from spark_stream.client.reading.core import RangeCore
from spark_stream.cluster.brokers import NO_GENERATION
from spark_stream.consistency.control.partition_record import Member, PartitionRecord
from spark_stream.consistency.isolation import Bounds, Isolation
from spark_stream.consistency.replication import follower
from tests.simulation.planted_bugs.planting import Patch, bug


@bug
def a_follower_serves_all_that_it_has(patch: Patch) -> None:
    """Also entries above the high watermark."""
    original = Partition.bounds

    def bounds(self: Partition, isolation: Isolation | None = None) -> Bounds:
        found = original(self, isolation)
        if isolation is None or not self.follows:
            return found
        end = found.log_end_offset
        return structs.replace(found, high_watermark=end, last_stable_offset=end)

    patch.setattr(Partition, "bounds", bounds)


@bug
def any_follower_serves(patch: Patch) -> None:
    """Also one with records that its leader lacks: that was elected without it."""

    class Everybody(list[Member]):
        def __contains__(self, _: object) -> bool:
            return True

    def followers(record: PartitionRecord) -> Everybody:
        others = [each for each in record.replicas if each != record.leader]
        return Everybody(Member(each, NO_GENERATION) for each in others)

    patch.setattr(follower, "followers", followers)


@bug
def the_end_of_a_follower_is_that_of_a_range(patch: Patch) -> None:
    """The leader's entries beyond it are never read."""
    original = RangeCore.on_ended

    def ended(self: RangeCore) -> None:
        self.at_follower = False
        original(self)

    patch.setattr(RangeCore, "on_ended", ended)


@bug
def what_a_follower_lacks_counts_as_lost(patch: Patch) -> None:
    """Its error ends a range that the leader can serve."""

    original = RangeCore.on_failed

    def failed(self: Any, error: IsologError, now: float) -> int | None:
        self._is_over = self.at_follower
        return original(self, error, now)

    patch.setattr(RangeCore, "on_failed", failed)
