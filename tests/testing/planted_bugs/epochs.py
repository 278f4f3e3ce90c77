"""Epochs and sessions that nobody checks."""

from __future__ import annotations

from spark_stream.broker import fetching
from spark_stream.broker.following import FollowingReplica
from spark_stream.broker.replica_shell import ReplicaShell
from spark_stream.consistency.ids import Offset
from spark_stream.consistency.lineage import Lineage
from spark_stream.errors import NotLeader
from tests.testing.planted_bugs.planting import Patch, bug


@bug
def a_follower_takes_frames_of_any_epoch(patch: Patch) -> None:
    def check(self: FollowingReplica, turn: int) -> None:
        if self._closed is not None or not self.follows:
            raise NotLeader(f"{self.name} does not follow")

    patch.setattr(FollowingReplica, "_check_follows", check)


@bug
def markers_are_looked_for_in_any_epoch(patch: Patch) -> None:
    def is_replicated(self: ReplicaShell, entry: int, epoch: int) -> bool:
        self.check_leads()
        return self.replica.bounds_state.high_watermark.entry >= entry

    patch.setattr(ReplicaShell, "is_replicated", is_replicated)


@bug
def a_reader_is_not_told_what_was_taken_back(patch: Patch) -> None:
    patch.setattr(fetching.FetchStream, "_check_lineages", lambda self: None)


@bug
def a_new_leader_ends_ranges_at_a_bound_that_it_does_not_know(patch: Patch) -> None:
    patch.setattr(fetching.FetchStream, "_check_not_short", lambda self: None)


@bug
def only_the_offset_of_a_position_is_compared(patch: Patch) -> None:
    def surviving(self: ReplicaShell, lineage: Lineage) -> Offset:
        return min(Offset(lineage[-1][1]), self.replica.bounds_state.log_end.offset)

    patch.setattr(ReplicaShell, "surviving", surviving)
