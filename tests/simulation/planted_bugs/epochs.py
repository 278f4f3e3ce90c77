"""Epochs and sessions that nobody checks."""

from __future__ import annotations

from isolog.errors import NotLeader
from spark_stream.broker.partition.partition import Partition
from spark_stream.broker.partition.state import PartitionState, Role
from spark_stream.broker.serving import fetching
from spark_stream.consistency.ids import Offset
from spark_stream.consistency.replication.epochs import Lineage
from tests.simulation.planted_bugs.planting import Patch, bug


@bug
def a_follower_takes_frames_of_any_epoch(patch: Patch) -> None:
    def check(self: PartitionState, turn: int) -> None:
        if self.closed is not None or self.role is not Role.FOLLOWER:
            raise NotLeader(f"{self.name} does not follow")

    patch.setattr(PartitionState, "check_follows", check)


@bug
def markers_are_looked_for_in_any_epoch(patch: Patch) -> None:
    def is_replicated(self: Partition, entry: int, epoch: int) -> bool:
        self.check_leads()
        return self.core.bounds_state.high_watermark.entry >= entry

    patch.setattr(Partition, "is_replicated", is_replicated)


@bug
def a_reader_is_not_told_what_was_taken_back(patch: Patch) -> None:
    patch.setattr(fetching.RangeStream, "_check_lineages", lambda self: None)


@bug
def a_new_leader_ends_ranges_at_a_bound_that_it_does_not_know(patch: Patch) -> None:
    patch.setattr(fetching.RangeStream, "_check_not_short", lambda self: None)


@bug
def only_the_offset_of_a_position_is_compared(patch: Patch) -> None:
    def surviving(self: Partition, lineage: Lineage) -> Offset:
        return min(Offset(lineage[-1][1]), self.core.bounds_state.log_end.offset)

    patch.setattr(Partition, "surviving", surviving)
