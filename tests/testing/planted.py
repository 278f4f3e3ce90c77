"""Bugs to plant in the product: each is a function that patches it, and says what it breaks.

A simulator that finds nothing may be one that looks at nothing. Each of these is a mistake that
somebody could make, in one place, and that no type checker sees.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest

from spark_stream.broker import append, fetching, joining, replica_shell, step_table
from spark_stream.broker.host import Host
from spark_stream.broker.outcomes import Appended
from spark_stream.broker.partition import Partition
from spark_stream.broker.replica_shell import ReplicaShell
from spark_stream.cluster import vouching
from spark_stream.cluster.leases import Lease, Leases
from spark_stream.cluster.numbers import Numbers
from spark_stream.consistency import election, isolation, leader, producers, replica
from spark_stream.consistency import transactions as rules
from spark_stream.consistency.follower import GoOn
from spark_stream.consistency.ids import EntryIndex
from spark_stream.consistency.joins import Joins
from spark_stream.consistency.partition_record import Member
from spark_stream.consistency.producers import Accepted, Duplicate
from spark_stream.consistency.progress import Progress
from spark_stream.consistency.transactions import State
from spark_stream.errors import StorageFailure
from spark_stream.scripts import (
    consumers,
    cutting,
    deciding,
    finishing,
    positions,
    records,
    sweeping,
    topics,
)
from spark_stream.scripts.finishing import Finished
from spark_stream.scripts.steps import Put, WriteMarkers, together
from spark_stream.storage.active import ActiveSegment
from spark_stream.storage.forcing import Forcing
from spark_stream.storage.log import PartitionLog

Patch = pytest.MonkeyPatch
BUGS: dict[str, Callable[[Patch], None]] = {}
IN_FILES: set[str] = set()
"""Those that no run can meet whose logs are lists."""


def bug(plant: Callable[[Patch], None]) -> Callable[[Patch], None]:
    BUGS[plant.__name__] = plant
    return plant


def bug_in_files(plant: Callable[[Patch], None]) -> Callable[[Patch], None]:
    IN_FILES.add(plant.__name__)
    return bug(plant)


def no_steps(*_: Any, **__: Any) -> Any:
    """A script that does nothing."""
    yield from ()


# -- deciding and finishing -----------------------------------------------------------------------


@bug
def partitions_are_not_sealed(patch: Patch) -> None:
    def skip(decided: Any) -> Any:
        yield from ()
        return list(decided.partitions), None

    patch.setattr(finishing, "seal_partitions", skip)


@bug
def a_seal_lets_pending_joins_live(patch: Patch) -> None:
    def seal(self: Joins, transaction: int) -> None:
        found = self._transactions.get(transaction)
        if found is not None:
            found.confirmed.clear()

    patch.setattr(Joins, "seal", seal)


@bug
def batches_need_no_confirmed_join(patch: Patch) -> None:
    patch.setattr(
        replica.Replica,
        "judge",
        lambda self, stamp, records: producers.judge(
            self.producers.get(stamp.producer_id), stamp, records
        ),
    )


@bug
def markers_come_before_the_decision(patch: Patch) -> None:
    original = deciding.commit

    def early(finished: Any, asked: Any) -> Any:
        found = yield from records.read(asked.transactional_id)
        if found is not None and (found.number, found.state) == (asked.number, State.OPEN):
            yield from together(
                WriteMarkers(at, asked.number, asked.taken) for at in found.partitions
            )
        return (yield from original(finished, asked))

    patch.setattr(deciding, "commit", early)


@bug
def a_commit_takes_all_branches(patch: Patch) -> None:
    original = finishing.write_markers

    def take_all(decided: Any, places: Any) -> Any:
        writers = (decided.producer_id, *decided.branches, *decided.dropped)
        everybody = tuple(each for each in writers if each >= 0)
        return (yield from original(rules.replace(decided, taken=everybody), places))

    patch.setattr(finishing, "write_markers", take_all)


@bug
def a_transaction_is_finished_before_its_markers(patch: Patch) -> None:
    original = finishing.finish

    def hasty(finished: Finished, decided: Any) -> Any:
        yield from finishing.record_finish(finished, decided)
        return (yield from original(finished, decided))

    for module in (deciding, sweeping, consumers):
        patch.setattr(module, "finish", hasty)


@bug
def what_others_decided_counts_as_finished(patch: Patch) -> None:
    patch.setattr(Finished, "holds", lambda self, found: True)
    patch.setattr(Finished, "forget", lambda self, found: None)


@bug
def a_lost_race_is_not_noticed(patch: Patch) -> None:
    def put(key: str, value: Any, expected: int) -> Any:
        yield Put(key, value, expected)
        return True

    patch.setattr(records, "put", put)


@bug
def numbers_are_not_above_the_last(patch: Patch) -> None:
    original = Numbers.take
    patch.setattr(Numbers, "take", lambda self, above=-1: original(self))
    patch.setattr(
        deciding,
        "allot",
        _allot_anything,
    )
    patch.setattr(rules, "begun", _begun_anyhow(rules.begun))


def _allot_anything(found: Any, spare: Any, *, producer_id: bool = True) -> Any:
    number = yield from deciding.take_number(deciding.Numbering.TRANSACTIONS)
    producer = spare.producer_id
    if producer_id and producer < 0:
        producer = yield from deciding.take_number(deciding.Numbering.PRODUCERS)
    return rules.Allotted(number, producer, spare.coordinator)


def _begun_anyhow(original: Any) -> Any:
    def begun(transaction: Any, allotted: Any, now_ms: int) -> Any:
        before = rules.replace(transaction, number=-1)
        return original(before, allotted, now_ms)

    return begun


@bug
def a_commit_does_not_force(patch: Patch) -> None:
    patch.setattr(deciding, "force_partitions", no_steps)


@bug
def markers_of_a_commit_are_not_forced(patch: Patch) -> None:
    patch.setitem(
        step_table._HERE,
        WriteMarkers,
        lambda at, step: at.end_transaction(step.transaction, frozenset(step.taken).__contains__),
    )


@bug
def the_record_does_not_name_the_partition(patch: Patch) -> None:
    patch.setattr(joining.deciding, "join", no_steps)


# -- by itself ------------------------------------------------------------------------------------


@bug
def a_sweep_ignores_timeouts(patch: Patch) -> None:
    patch.setattr(sweeping.Watch, "unchanged_s", lambda self, record, now_s: 1e9)


@bug
def a_sweep_ignores_leases(patch: Patch) -> None:
    patch.setattr(Leases, "alive", lambda self, broker_id, incarnation=None: False)


@bug
def a_start_aborts_what_is_open(patch: Patch) -> None:
    def restore(open_parts: Any) -> Any:
        for at, number in open_parts:
            yield WriteMarkers(at, number, ())
        return []

    patch.setattr(sweeping, "restore_markers", restore)


@bug
def a_leader_epoch_is_used_again(patch: Patch) -> None:
    def led_by(record: Any, leader: Any, isr: Any) -> Any:
        return rules.replace(record, leader=leader, isr=isr)

    patch.setattr(election, "_led_by", led_by)


# -- replicas -------------------------------------------------------------------------------------


@bug
def a_follower_keeps_what_its_leader_lacks(patch: Patch) -> None:
    patch.setattr(replica_shell, "preparation", lambda state, agreed: GoOn())


@bug
def a_follower_counts_before_it_has_appended(patch: Patch) -> None:
    original = ReplicaShell.entries_for

    def entries_for(self: Any, session: int, first: Any, max_bytes: int) -> Any:
        found = original(self, session, first, max_bytes)
        if found is not None:
            self.take_report(session, int(found.rows["entry_index"][-1]) + 1)
        return found

    patch.setattr(ReplicaShell, "entries_for", entries_for)


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
    original = vouching.doubt
    patch.setattr(
        vouching, "doubt", lambda left, found: original(left, found) if left is None else None
    )


@bug
def a_broker_vouches_for_logs_that_are_missing(patch: Patch) -> None:
    original = Host.ends

    def ends(self: Host) -> vouching.Ends:
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
    patch.setattr(ReplicaShell, "check_hw_known", lambda self: None)


@bug
def a_duplicate_is_acknowledged_at_once(patch: Patch) -> None:
    original = Partition.take

    def take(self: Partition, *asked: Any) -> Any:
        taken = original(self, *asked)
        if taken is not None and taken.appended.duplicate:
            taken.pending = None
        return taken

    patch.setattr(Partition, "take", take)


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
    patch.setattr(Host, "_remove_files_of", lambda self, topic, number: None)


@bug
def a_lease_is_shown_as_before(patch: Patch) -> None:
    original = Leases.hold
    patch.setattr(
        Leases, "hold", lambda self, broker, life, after=None: original(self, broker, life)
    )


# -- partitions -----------------------------------------------------------------------------------


@bug
def a_batch_is_answered_before_it_is_appended(patch: Patch) -> None:
    original = append.Append._take

    def hasty(self: Any, target: Partition, patience_s: float) -> Any:
        end = target.bounds().log_end_offset
        self._acknowledge(Appended(end, self._batch.num_rows), int(target.leader_epoch))
        return (yield from original(self, target, patience_s))

    patch.setattr(append.Append, "_take", hasty)


@bug
def a_duplicate_is_appended(patch: Patch) -> None:
    original = producers.judge

    def judge(state: Any, stamp: Any, count: int) -> Any:
        found = original(state, stamp, count)
        return Accepted() if isinstance(found, Duplicate) else found

    patch.setattr(producers, "judge", judge)


@bug
def a_duplicate_is_answered_with_the_end(patch: Patch) -> None:
    original = append.Append._acknowledge

    def acknowledge(self: Any, done: Appended, epoch: int) -> None:
        if done.duplicate:
            end = self._hosted.partition(self.partition).bounds().log_end_offset
            done = Appended(end, done.count, duplicate=True)
        original(self, done, epoch)

    patch.setattr(append.Append, "_acknowledge", acknowledge)


@bug
def the_last_stable_offset_ignores_what_is_open(patch: Patch) -> None:
    patch.setattr(leader, "undecided_from", lambda state, offset: state)


@bug
def nobody_is_woken(patch: Patch) -> None:
    original = Partition._carry_out

    def forget(self: Partition, effects: Any) -> Any:
        original(self, effects)
        return ()

    patch.setattr(Partition, "_carry_out", forget)


# -- readers and consumers ------------------------------------------------------------------------


@bug
def aborted_records_travel(patch: Patch) -> None:
    patch.setattr(fetching, "DROPS_ABORTED", frozenset())


@bug
def a_cut_is_where_each_partition_is_stable(patch: Patch) -> None:
    patch.setattr(cutting, "greatest_cut", lambda bounds, spans: list(bounds))
    patch.setattr(cutting, "next_cut", lambda lower, upper, bounds, spans: list(bounds))


@bug
def positions_move_before_the_decision(patch: Patch) -> None:
    original = deciding.commit

    def early(finished: Any, asked: Any) -> Any:
        yield from positions.store_positions(asked.positions, {})
        return (yield from original(finished, asked))

    patch.setattr(deciding, "commit", early)


@bug
def positions_are_stored_after_the_finish(patch: Patch) -> None:
    original = finishing.record_finish

    def finish(finished: Any, decided: Any) -> Any:
        places, _ = yield from finishing.seal_partitions(decided)
        yield from finishing.write_markers(decided, places)
        done = yield from original(finished, decided)
        if decided.state is State.COMMITTING:
            yield from positions.store_positions(decided.positions, {})
        return done

    for module in (deciding, sweeping, consumers):
        patch.setattr(module, "finish", finish)


@bug
def a_new_owner_withdraws_nothing(patch: Patch) -> None:
    patch.setattr(consumers, "withdraw_announcement", no_steps)


# -- topics ---------------------------------------------------------------------------------------


@bug
def files_of_a_deleted_topic_stay(patch: Patch) -> None:
    patch.setattr(Host, "remove_files", lambda self, topic: None)


@bug
def a_deletion_is_not_announced(patch: Patch) -> None:
    patch.setattr(topics, "announce_removal", no_steps)


# -- files ----------------------------------------------------------------------------------------


@bug_in_files
def an_entry_is_written_before_its_batch(patch: Patch) -> None:
    original = ActiveSegment.append

    def append_entry_first(self: ActiveSegment, entry: Any, message: Any, **how: Any) -> None:
        later: list[Callable[[], None]] = []
        arrow, entries = self._arrow, self._entries
        if self._data_end:
            self._arrow = Waiting(arrow, later)  # type: ignore[assignment]
            self._entries = Followed(entries, later)  # type: ignore[assignment]
        try:
            original(self, entry, message, **how)
        finally:
            if isinstance(self._arrow, Waiting):
                self._arrow, self._entries = arrow, entries

    patch.setattr(ActiveSegment, "append", append_entry_first)


class Wrapped:
    """A file behind something."""

    def __init__(self, file: Any, later: list[Callable[[], None]]) -> None:
        self.file = file
        self.later = later

    def __getattr__(self, name: str) -> Any:
        return getattr(self.file, name)


class Waiting(Wrapped):
    """Its writes wait."""

    def write(self, position: int, data: Any) -> None:
        self.later.append(lambda: self.file.write(position, data))


class Followed(Wrapped):
    """Its writes are followed by those that wait."""

    def write(self, position: int, data: Any) -> None:
        self.file.write(position, data)
        for each in self.later:
            each()


@bug_in_files
def a_force_that_failed_is_believed(patch: Patch) -> None:
    def believe(self: Forcing, act: Callable[[], None]) -> None:
        with suppress(StorageFailure):
            act()

    patch.setattr(Forcing, "_do", believe)


@bug_in_files
def a_roll_does_not_force(patch: Patch) -> None:
    original = PartitionLog.roll

    def roll(self: PartitionLog) -> None:
        with pytest.MonkeyPatch.context() as meanwhile:
            meanwhile.setattr(ActiveSegment, "flush", lambda _: None)
            original(self)

    patch.setattr(PartitionLog, "roll", roll)
