"""Replicas, their leaders and their elections."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from msgspec import structs

from spark_stream.broker.host.host import Host
from spark_stream.broker.host.hosted_topic import TopicFolders
from spark_stream.broker.partition import replication as following
from spark_stream.broker.partition.appends import Appends
from spark_stream.broker.partition.partition import Partition
from spark_stream.broker.partition.replication import FollowerSession
from spark_stream.broker.partition.state import ReplicaRole, Role
from spark_stream.cluster import generations
from spark_stream.cluster.stores.leases import Lease, Leases
from spark_stream.consistency import isolation
from spark_stream.consistency.control import election
from spark_stream.consistency.control.partition_record import Member
from spark_stream.consistency.ids import EntryIndex
from spark_stream.consistency.partition import replica
from spark_stream.consistency.partition.progress import Progress
from spark_stream.consistency.replication import bounds as transitions
from spark_stream.consistency.replication.follower import Continue, LeaderAnswer
from spark_stream.scripts.transactions import finishing
from spark_stream.storage.log import log, retention
from spark_stream.storage.log.log import PartitionLog
from tests.simulation.planted_bugs.planting import Patch, bug, bug_in_trims, no_steps


@bug
def a_follower_keeps_what_its_leader_lacks(patch: Patch) -> None:
    patch.setattr(following, "preparation", lambda state, agreed, hole: Continue())


@bug
def a_follower_counts_before_it_has_appended(patch: Patch) -> None:
    original = FollowerSession.read_entries

    def read_entries(self: Any, first: Any, max_bytes: int) -> Any:
        found = original(self, first, max_bytes)
        if found is not None:
            self.on_acked(int(found.rows["entry_index"][-1]) + 1)
        return found

    patch.setattr(FollowerSession, "read_entries", read_entries)


@bug
def a_follower_takes_all_that_it_has_for_committed(patch: Patch) -> None:
    original = replica.Replica._learned

    def learned(self: replica.Replica, state: Any, leader_hw: EntryIndex) -> Any:
        return original(self, state, state.log_end.entry)

    patch.setattr(replica.Replica, "_learned", learned)


@bug
def anybody_who_is_alive_is_elected(patch: Patch) -> None:
    def live_members(record: Any, alive: Any) -> Any:
        return tuple(Member(each, alive[each]) for each in record.replicas if each in alive)

    patch.setattr(election, "live_members", live_members)


@bug
def who_is_being_removed_is_not_waited_for(patch: Patch) -> None:
    _wait_for(patch, lambda progress: progress.proposed or progress.record.isr)


@bug
def who_is_being_added_is_not_waited_for(patch: Patch) -> None:
    _wait_for(patch, lambda progress: progress.record.isr)


def _wait_for(patch: Patch, members: Callable[[Progress], Any]) -> None:
    original = Progress._find_maximal

    def find(self: Progress) -> None:
        original(self)
        awaited = set(members(self)) - {self.me}
        self._awaited = [each for each in self._awaited if each.member in awaited]

    patch.setattr(Progress, "_find_maximal", find)


@bug
def the_inherited_end_is_forgotten(patch: Patch) -> None:
    original = Progress.__init__

    def forget(self: Progress, me: Any, record: Any, version: int, _: Any, *rest: Any) -> None:
        original(self, me, record, version, EntryIndex(0), *rest)

    patch.setattr(Progress, "__init__", forget)


@bug
def in_sync_replicas_are_taken_to_have_all(patch: Patch) -> None:
    original = Progress._find_maximal

    def find(self: Progress) -> None:
        known = set(self._followers)
        original(self)
        for member, each in self._followers.items():
            if member not in known and each.session is None:
                each.acked = self.inherited_end

    patch.setattr(Progress, "_find_maximal", find)


@bug
def one_in_sync_replica_is_always_enough(patch: Patch) -> None:
    patch.setattr(Progress, "enough", property(lambda self: True))


@bug
def a_broker_vouches_for_whatever_it_finds(patch: Patch) -> None:
    original = generations.doubt
    patch.setattr(
        generations, "doubt", lambda left, found: original(left, found) if left is None else None
    )


@bug
def a_broker_vouches_for_logs_that_are_missing(patch: Patch) -> None:
    original = Host.ends

    def ends(self: Host) -> generations.Ends:
        self.doubts.clear()
        return original(self)

    patch.setattr(Host, "ends", ends)


@bug
def generations_are_not_compared(patch: Patch) -> None:
    def live_members(record: Any, alive: Any) -> Any:
        return tuple(each for each in record.isr if each.broker in alive)

    patch.setattr(election, "live_members", live_members)
    patch.setattr(election, "leads", lambda record, me: record.leader == me.broker)


@bug
def a_broker_serves_after_its_lease(patch: Patch) -> None:
    patch.setattr(Lease, "may_serve", lambda self: True)


@bug
def markers_are_not_awaited(patch: Patch) -> None:
    patch.setattr(finishing, "_await_replication", no_steps)


@bug
def a_new_leader_tells_what_it_knows(patch: Patch) -> None:
    patch.setattr(Partition, "check_hw_known", lambda self: None)


@bug
def a_new_leader_describes_what_it_has(patch: Patch) -> None:
    original = Partition.described
    patch.setattr(
        Partition, "described", lambda self: structs.replace(original(self), hw_known=True)
    )


@bug
def a_duplicate_is_acknowledged_at_once(patch: Patch) -> None:
    original = Appends.take

    def take(self: Appends, *asked: Any) -> Any:
        taken = original(self, *asked)
        if taken is not None and taken.appended.duplicate:
            taken.pending = None
        return taken

    patch.setattr(Appends, "take", take)


@bug
def nobody_waits_for_followers(patch: Patch) -> None:
    patch.setattr(replica, "_waits", lambda stamp, level: False)


@bug
def readers_of_what_is_replicated_see_the_rest(patch: Patch) -> None:
    patch.setitem(
        isolation.UPPER_BOUND,  # type: ignore[arg-type]
        isolation.Isolation.READ_REPLICATED,
        lambda bounds: bounds.log_end_offset,
    )


@bug
def files_of_a_replica_that_moved_stay(patch: Patch) -> None:
    patch.setattr(TopicFolders, "remove_replica", lambda self, topic, number: None)


@bug
def a_lease_is_shown_as_before(patch: Patch) -> None:
    original = Leases.hold
    patch.setattr(
        Leases, "hold", lambda self, broker, life, after=None: original(self, broker, life)
    )


# -- retention ------------------------------------------------------------------------------------


@bug
def retention_takes_what_is_young(patch: Patch) -> None:
    def removable(closed: Any, active: int, settings: Any, now: int, *limits: int) -> int:
        return original(closed, active, settings, now + 3_000_000, *limits)

    original = retention.removable
    patch.setattr(log, "removable", removable)


@bug
def retention_takes_what_is_undecided(patch: Patch) -> None:
    """As it is where the leader's rules do not hold it back."""
    original = PartitionLog.housekeep

    def housekeep(self: PartitionLog, now: int, _: Any, *limits: Any) -> int:
        return original(self, now, self.end.offset, *limits)

    patch.setattr(PartitionLog, "housekeep", housekeep)
    patch.setattr(
        transitions,
        "evicted",
        lambda state, log_start: structs.replace(state, log_start=log_start),
    )


@bug_in_trims
def a_new_leader_starts_below_its_trim(patch: Patch) -> None:
    original = ReplicaRole.trim

    def trim(self: ReplicaRole, before: Any) -> None:
        if self._state.role is Role.LEADER:
            original(self, before)

    patch.setattr(ReplicaRole, "trim", trim)


@bug_in_trims
def a_log_that_ends_below_its_trim_goes_on_there(patch: Patch) -> None:
    patch.setattr(ReplicaRole, "_skip_trimmed", lambda self, now: None)


@bug
def a_follower_far_behind_begins_anew_at_the_end(patch: Patch) -> None:
    original = replica.Replica.follower_started

    def started(self: replica.Replica, *asked: Any) -> Any:
        agreed, effects = original(self, *asked)
        if isinstance(agreed, LeaderAnswer) and agreed.agreement.begin is not None:
            end = self.bounds_state.log_end
            moved = structs.replace(agreed.agreement, entry=end.entry, begin=end)
            agreed = structs.replace(agreed, agreement=moved)
        return agreed, effects

    patch.setattr(replica.Replica, "follower_started", started)
