"""Handovers: logs that refuse writes, damaged logs, and preferred leaders."""

from __future__ import annotations

import random
from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from spark_stream.consistency.control import election
from spark_stream.consistency.control.election import Unchanged
from spark_stream.consistency.control.handover import (
    AT_ONCE_MAX,
    FULL_US,
    RETRY_US,
    Settling,
    Trouble,
    Verdict,
    after_attempt,
    after_look,
    after_refusal,
    after_write,
    can_go_on,
    due_handovers,
    has_heir,
    judge,
)
from spark_stream.consistency.control.partition_record import Member, PartitionRecord
from spark_stream.consistency.ids import BrokerId, Generation, LeaderEpoch
from tests.examples import examples


def test_a_failed_write_is_acted_on_immediately_and_a_full_disk_later():
    assert after_refusal(None, 100, full=False) == Trouble(full=False, due=100)
    assert after_refusal(None, 100, full=True) == Trouble(full=True, due=100 + FULL_US)


def test_the_wait_for_a_full_disk_begins_with_its_first_refusal():
    first = after_refusal(None, 100, full=True)
    assert after_refusal(first, 100 + FULL_US, full=True) == first


def test_a_failed_write_on_a_full_disk_is_acted_on_immediately():
    full = after_refusal(None, 100, full=True)
    assert after_refusal(full, 200, full=False) == Trouble(full=False, due=200)


def test_a_write_ends_the_trouble_of_a_full_disk_but_not_of_a_failed_one():
    assert after_write(None) is None
    assert after_write(after_refusal(None, 0, full=True)) is None
    failed = after_refusal(None, 0, full=False)
    assert after_write(failed) == failed


def test_only_the_first_failure_is_acted_on_without_a_probe():
    failed = after_refusal(None, 0, full=False)
    assert not failed.needs_probe
    assert after_attempt(failed, 7).needs_probe
    assert after_refusal(None, 0, full=True).needs_probe


@given(st.lists(st.tuples(st.booleans(), st.integers(1, FULL_US)), min_size=1))
def test_every_sequence_of_refusals_is_acted_on_within_the_wait_for_a_full_disk(refusals):
    trouble, now, first = None, 0, None
    for full, pause in refusals:
        now += pause
        first = now if first is None else first
        trouble = after_refusal(trouble, now, full=full)
        assert trouble.due <= max(now, first + FULL_US)
    assert after_attempt(trouble, now).due == now + RETRY_US


def test_a_preferred_leader_waits_for_the_settle_time_and_not_longer():
    known = after_look({}, {"t/0": "epoch 1"}, 100)
    known = after_look(known, {"t/0": "epoch 1"}, 150)
    assert known == {"t/0": Settling("epoch 1", 100)}
    assert due_handovers(known, 60, 159) == []
    assert due_handovers(known, 60, 160) == ["t/0"]


def test_an_interruption_restarts_the_settle_time():
    known = after_look({}, {"t/0": "epoch 1"}, 100)
    known = after_look(known, {}, 110)
    known = after_look(known, {"t/0": "epoch 1"}, 120)
    assert known == {"t/0": Settling("epoch 1", 120)}


def test_another_start_or_leader_restarts_the_settle_time():
    known = after_look({}, {"t/0": "epoch 1", "t/1": "epoch 1"}, 100)
    known = after_look(known, {"t/0": "epoch 2", "t/1": "epoch 1"}, 120)
    assert known == {"t/0": Settling("epoch 2", 120), "t/1": Settling("epoch 1", 100)}


def test_an_unstable_broker_gets_no_partition_back():
    known: dict[str, Settling] = {}
    for start in range(10):
        for now in range(start * 100, start * 100 + 55, 5):
            known = after_look(known, {"t/0": start}, now)
            assert due_handovers(known, 60, now) == []
    for now in range(955, 961, 5):
        known = after_look(known, {"t/0": 9}, now)
    assert due_handovers(known, 60, 960) == ["t/0"]


def test_a_bounded_number_is_handed_over_together_longest_waiting_first():
    late = {f"late/{number}": 1 for number in range(AT_ONCE_MAX)}
    early = {f"early/{number}": 1 for number in range(10)}
    known = after_look(after_look({}, early, 100), late | early, 110)
    found = due_handovers(known, 60, 200)
    assert len(found) == AT_ONCE_MAX
    assert found[:10] == list(early)


A, B, C = (BrokerId(name) for name in "abc")
BROKERS = (A, B, C)
OLD, NEW = Generation("old"), Generation("new")


def record(leader: BrokerId | None, *in_sync: BrokerId) -> PartitionRecord:
    return PartitionRecord(BROKERS, leader, LeaderEpoch(0), tuple(Member(b, OLD) for b in in_sync))


def alive(*brokers: BrokerId) -> dict[BrokerId, Generation]:
    return dict.fromkeys(brokers, OLD)


ME = Member(A, OLD)


def test_a_follower_or_a_leader_leaves_while_another_in_sync_replica_lives() -> None:
    for leader in (A, B):
        damaged = record(leader, A, B)
        assert judge(damaged, [damaged], ME, alive(A, B)) is Verdict.LEAVE


def test_the_only_live_replica_stays() -> None:
    damaged = record(A, A, B)
    assert judge(damaged, [damaged], ME, alive(A)) is Verdict.STAY
    assert judge(record(A, A), [record(A, A)], ME, alive(A, B, C)) is Verdict.STAY
    # A broker that came back with other logs is not the one that was in sync.
    assert judge(damaged, [damaged], ME, {A: OLD, B: NEW}) is Verdict.STAY


def test_a_damaged_broker_waits_while_a_sound_partition_would_lose_its_leader() -> None:
    damaged, sound = record(B, A, B), record(A, A, C)
    assert judge(damaged, [damaged, sound], ME, alive(A, B)) is Verdict.WAIT
    shrunk = record(A, A)
    assert judge(damaged, [damaged, shrunk], ME, alive(A, B)) is Verdict.LEAVE
    assert judge(damaged, [damaged, sound], ME, alive(A, B, C)) is Verdict.LEAVE


some_brokers = st.lists(st.sampled_from(BROKERS), min_size=1, max_size=3, unique=True)
records = st.builds(
    lambda isr, leader: record(leader if leader in isr else None, *isr),
    some_brokers,
    st.sampled_from(BROKERS),
)
living = st.lists(st.sampled_from(BROKERS[1:]), max_size=2, unique=True).map(
    lambda others: alive(A, *others)
)


def next_leader(partition: PartitionRecord, members: dict[BrokerId, Generation], me: Member):
    """The leaders after the controller's round, and after the broker resumed its lone
    partitions."""
    outcome = election.elect(partition, members)
    if isinstance(outcome, Unchanged) and outcome.why is election.Obstacle.LED:
        return partition.leader
    if isinstance(outcome, Unchanged):
        outcome = election.renew(partition, me, Member(me.broker, members[me.broker]))
    return None if isinstance(outcome, Unchanged) else outcome.leader


@given(records, st.lists(records, max_size=4), living)
def test_a_leaving_broker_costs_no_partition_its_leader_and_leads_no_damaged_one(
    damaged: PartitionRecord,
    others: list[PartitionRecord],
    members: dict[BrokerId, Generation],
) -> None:
    verdict = judge(damaged, [damaged, *others], ME, members)
    after = members | {A: NEW}
    if verdict is Verdict.LEAVE:
        assert next_leader(damaged, after, ME) in (B, C)
        for each in others:
            if next_leader(each, members, ME) is not None:
                assert next_leader(each, after, ME) is not None
    elif verdict is Verdict.STAY:
        # To leave would help nobody: no other could lead.
        assert next_leader(damaged, after, ME) in (A, None)
    else:
        assert has_heir(damaged, ME, members)
        assert not all(can_go_on(each, ME, members) for each in others)


# -- random histories of a partition ---------------------------------------------------------------


@dataclass
class Copy:
    """A replica's log: its length, and its damaged entries, detected or not."""

    end: int = 0
    rotten: set[int] = field(default_factory=set)
    known: set[int] = field(default_factory=set)

    @property
    def hole(self) -> int | None:
        return min(self.known, default=None)


class Life:
    """Three copies of one partition. Brokers die and come back, bytes rot and are found.

    A process that ends loses only its list of detected damage.
    """

    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)
        self.committed = 12
        self.copies = {broker: Copy(self.committed) for broker in BROKERS}
        self.generations = dict.fromkeys(BROKERS, Generation("0"))
        self.dead: set[BrokerId] = set()
        self.rotted: set[tuple[BrokerId, int]] = set()
        members = tuple(Member(each, self.generations[each]) for each in BROKERS)
        self.record = PartitionRecord(BROKERS, A, LeaderEpoch(0), members)

    @property
    def alive(self) -> dict[BrokerId, Generation]:
        return {b: g for b, g in self.generations.items() if b not in self.dead}

    @property
    def leader(self) -> BrokerId | None:
        """The leader: on record, alive, and in the generation in which it was in sync."""
        leader = self.record.leader
        if leader is None or self.record.member(leader) is None:
            return None
        member = self.record.member(leader)
        return leader if self.alive.get(leader) == member.generation else None

    def step(self) -> None:
        often = [self.append, self.follow] * 2
        rarely = [self.rot, self.find, self.judge, self.elect, self.shrink]
        self.chance.choice([*often, *rarely, self.die, self.come_back])()

    def append(self) -> None:
        if self.leader is None:
            return
        self.copies[self.leader].end += 1
        members = [m.broker for m in self.record.isr]
        if all(self.alive.get(m.broker) == m.generation for m in self.record.isr):
            for broker in members:
                self._fetch(broker)
            self._commit(members)

    def rot(self) -> None:
        """An entry rots that another in-sync replica has: more than that nothing could survive."""
        broker = self.chance.choice(BROKERS)
        copy = self.copies[broker]
        sound = [
            entry
            for entry in range(copy.end)
            if not any(entry in each.rotten for each in self.copies.values())
            and any(
                m.broker != broker and self.generations[m.broker] == m.generation
                for m in self.record.isr
                if self.copies[m.broker].end > entry
            )
        ]
        if sound and len(self.rotted) < 1:
            entry = self.chance.choice(sound)
            copy.rotten.add(entry)
            self.rotted.add((broker, entry))

    def find(self) -> None:
        broker = self.chance.choice(BROKERS)
        if broker not in self.dead:
            self.copies[broker].known |= self.copies[broker].rotten

    def judge(self) -> None:
        for broker, generation in self.alive.items():
            copy, me = self.copies[broker], Member(broker, generation)
            if copy.hole is None or self.record.member(broker) != me:
                continue
            if judge(self.record, [self.record], me, self.alive) is Verdict.LEAVE:
                self.generations[broker] = Generation(str(int(generation) + 1))

    def elect(self) -> None:
        outcome = election.elect(self.record, self.alive)
        if not isinstance(outcome, Unchanged):
            self.record = outcome

    def follow(self) -> None:
        broker = self.chance.choice(BROKERS)
        if self.leader in (None, broker) or broker in self.dead:
            return
        me = Member(broker, self.generations[broker])
        self._fetch(broker, 1)
        whole = self.copies[broker].end == self.copies[self.leader].end
        if whole and me not in self.record.isr:
            leader = self.record.member(self.leader)
            named = [m for m in self.record.isr if m.broker != broker]
            outcome = election.propose_isr(
                self.record, leader, self.record.leader_epoch, [*named, me]
            )
            if not isinstance(outcome, Unchanged):
                self.record = outcome

    def shrink(self) -> None:
        if self.leader is None:
            return
        me = self.record.member(self.leader)
        live = election.live_members(self.record, self.alive)
        outcome = election.propose_isr(self.record, me, self.record.leader_epoch, live)
        if not isinstance(outcome, Unchanged):
            self.record = outcome
            self._commit([member.broker for member in live])

    def die(self) -> None:
        broker = self.chance.choice(BROKERS)
        if len(self.dead) < 2:
            self.dead.add(broker)
            self.copies[broker].known.clear()

    def come_back(self) -> None:
        if self.dead:
            self.dead.discard(self.chance.choice(sorted(self.dead)))

    def _commit(self, members: list[BrokerId]) -> None:
        self.committed = max(self.committed, min(self.copies[each].end for each in members))

    def _fetch(self, broker: BrokerId, most: int = 1000) -> None:
        """Follow the leader: truncate at the first detected damage, and copy the leader's
        entries."""
        if broker in (self.leader, None) or self.leader is None or broker in self.dead:
            return
        copy, source = self.copies[broker], self.copies[self.leader]
        me = Member(broker, self.generations[broker])
        if copy.hole is not None and self.record.member(broker) != me:
            copy.end = min(copy.end, copy.hole)
        copy.end = min(copy.end, source.end)
        copy.rotten = {entry for entry in copy.rotten if entry < copy.end}
        copy.known &= copy.rotten
        until = min(source.end, copy.end + most)
        while copy.end < until and copy.end not in source.rotten:
            copy.end += 1


@pytest.mark.rule(
    "the verdict on a broker with a damaged log: leave the ISRs, stay, or wait",
    "consistency/control/handover.py",
)
@pytest.mark.slow
def test_in_random_histories_every_committed_record_has_a_sound_electable_copy() -> None:
    lives, left, healed = examples(1000), 0, 0
    for seed in range(lives):
        life = Life(seed)
        for _ in range(60):
            life.step()
            suspicious = {entry for _, entry in life.rotted} | {life.committed - 1}
            for entry in suspicious & set(range(life.committed)):
                assert any(
                    copy.end > entry and entry not in copy.rotten for copy in life.copies.values()
                ), f"seed {seed}: entry {entry} is gone"
        left += any(generation != "0" for generation in life.generations.values())
        # All brokers return, and all damage is detected: in the end all logs are complete.
        life.dead.clear()
        for _ in range(12):
            life.elect()
            for broker in BROKERS:
                life.copies[broker].known |= life.copies[broker].rotten
            life.judge()
            life.elect()
            for _ in range(30):
                life.follow()
        if life.leader is not None:
            assert not any(copy.rotten for copy in life.copies.values()), f"seed {seed}"
            assert {member.broker for member in life.record.isr} == set(BROKERS), f"seed {seed}"
            healed += bool(life.rotted)
    assert left > 0.1 * lives
    assert healed > 0.3 * lives


def test_the_only_in_sync_replica_continues_to_lead_in_a_new_epoch() -> None:
    alone = record(A, A)
    renewed = election.renew(alone, ME, Member(A, NEW))
    assert renewed == replace(alone, leader_epoch=LeaderEpoch(1), isr=(Member(A, NEW),))
    assert isinstance(election.renew(record(A, A, B), ME, Member(A, NEW)), Unchanged)
