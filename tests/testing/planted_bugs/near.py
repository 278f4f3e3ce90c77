"""Reads at a follower: what it may answer, and what its answers mean."""

from __future__ import annotations

from typing import Any

from msgspec import structs

from spark_stream.broker.partition.partition import Partition
from spark_stream.broker.partition.state import PartitionState, Role
from spark_stream.client.reading.range_core import RangeCore
from spark_stream.consistency.isolation import Bounds, Isolation
from tests.testing.planted_bugs.planting import Patch, bug


@bug
def a_follower_serves_all_that_it_has(patch: Patch) -> None:
    """Also what is above the high watermark."""
    original = Partition.bounds

    def bounds(self: Partition, isolation: Isolation | None = None) -> Bounds:
        found = original(self, isolation)
        if not self.follows:
            return found
        end = found.log_end_offset
        return structs.replace(found, high_watermark=end, last_stable_offset=end)

    patch.setattr(Partition, "bounds", bounds)


@bug
def a_follower_serves_before_it_has_agreed_with_its_leader(patch: Patch) -> None:
    """Also what a leader that was elected without it does not have."""
    original = PartitionState.check_answers

    def check(self: PartitionState, shared: int | None) -> None:
        if shared is None or self.role is not Role.FOLLOWER:
            original(self, shared)

    patch.setattr(PartitionState, "check_answers", check)
    patch.setattr(Partition, "shared", property(lambda self: 0))


@bug
def the_end_of_a_follower_is_that_of_a_range(patch: Patch) -> None:
    """What the leader has beyond it is never read."""
    original = RangeCore.on_ended
    patch.setattr(RangeCore, "on_ended", lambda self, near=False: original(self))


@bug
def what_a_follower_lacks_counts_as_lost(patch: Patch) -> None:
    """Its error ends a range that the leader can serve."""

    def failed(self: Any, now: float) -> None:
        self._is_over = True

    patch.setattr(RangeCore, "on_near_failed", failed)
