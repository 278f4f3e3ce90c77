"""A whole partition of several replicas, in any order of events, and the mistakes that it finds.

The partition in memory (``partition_model``) runs the production rules. It is checked after each
small step, and in the end, without further faults, all replicas must be in sync and the same.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from spark_stream.consistency.control import election
from spark_stream.consistency.control.election import Obstacle, Unchanged
from spark_stream.consistency.control.partition_record import Member
from spark_stream.consistency.ids import EntryIndex
from spark_stream.consistency.partition import progress, replica
from spark_stream.consistency.partition.progress import Progress
from spark_stream.consistency.partition.replica import Replica
from spark_stream.consistency.replication import bounds, follower
from spark_stream.consistency.replication.follower import Continue, Refusal
from tests.consistency.partition_model import Cluster
from tests.consistency.partition_steps import WEIGHTS, run
from tests.examples import examples

RUNS = 300


@pytest.mark.rule("leader election", "consistency/control/election.py")
@pytest.mark.parametrize("part", [0, *(pytest.param(i, marks=pytest.mark.full) for i in (1, 2, 3))])
def test_runs_with_crashes_and_lost_messages_lose_no_committed_record(part):
    """``run(seed)`` repeats a run."""
    for seed in range(part * RUNS, (part + 1) * RUNS):
        try:
            run(seed)
        except Exception as error:
            raise AssertionError(f"run({seed}) of partition_steps finds it") from error


class PartitionMachine(RuleBasedStateMachine):
    """The same steps, chosen by Hypothesis, which makes what it finds short."""

    @initialize(
        brokers=st.integers(1, 4),
        factor=st.integers(1, 3),
        least=st.integers(1, 2),
        moves=st.booleans(),
    )
    def begin(self, brokers: int, factor: int, least: int, moves: bool):
        self.cluster = Cluster(
            brokers, min(factor, brokers), least, lambda options: options[0], moves=moves
        )

    @rule(step=st.sampled_from(list(WEIGHTS)), data=st.data())
    def do(self, step, data):
        self.cluster.choose = lambda options: data.draw(st.sampled_from(options))
        step(self.cluster)

    @invariant()
    def everything_holds(self):
        if hasattr(self, "cluster"):
            self.cluster.check()

    def teardown(self):
        if hasattr(self, "cluster"):
            self.cluster.check_same()
            self.cluster.heal()


TestPartition = PartitionMachine.TestCase
TestPartition.settings = settings(max_examples=examples(60), stateful_step_count=60, deadline=None)


# -- mistakes -------------------------------------------------------------------------------------

Patch = pytest.MonkeyPatch
MISTAKES: list[Callable[[Patch], None]] = []


def mistake(plant: Callable[[Patch], None]) -> Callable[[Patch], None]:
    MISTAKES.append(plant)
    return plant


@mistake
def a_follower_keeps_what_its_leader_does_not_have(patch: Patch) -> None:
    patch.setattr(follower, "preparation", lambda state, agreed, hole: Continue())


@mistake
def two_logs_agree_where_they_end_whatever_their_epochs(patch: Patch) -> None:
    patch.setattr(replica, "agreement", lambda one, two: EntryIndex(min(one.end, two.end)))


@mistake
def a_follower_counts_before_it_has_appended(patch: Patch) -> None:
    real = Replica.follower_acked

    def acked(self, session, entry, now):
        return real(self, session, self.bounds_state.log_end.entry, now)

    patch.setattr(Replica, "follower_acked", acked)


@mistake
def a_follower_counts_from_its_start_with_all_that_is_in_its_log(patch: Patch) -> None:
    real = Replica.follower_started

    def started(self, member, epoch, history, now):
        agreed, effects = real(self, member, epoch, history, now)
        if not isinstance(agreed, Refusal):
            end = min(history.end, self.bounds_state.log_end.entry)
            effects += self.follower_acked(agreed.session, EntryIndex(end), now)
        return agreed, effects

    patch.setattr(Replica, "follower_started", started)


@mistake
def any_replica_that_is_alive_is_elected(patch: Patch) -> None:
    def live(record, alive):
        return tuple(Member(each, alive[each]) for each in record.replicas if each in alive)

    patch.setattr(election, "live_members", live)


@mistake
def elections_ignore_generations(patch: Patch) -> None:
    def live(record, alive):
        brokers = [each.broker for each in record.isr if each.broker in alive]
        return tuple(Member(each, alive[each]) for each in brokers)

    patch.setattr(election, "live_members", live)


@mistake
def a_leader_ignores_its_own_generation(patch: Patch) -> None:
    def leads(record, me):
        return record.leader == me.broker

    for each in (election, progress):
        patch.setattr(each, "leads", leads)


@mistake
def a_leader_ignores_its_followers_generations(patch: Patch) -> None:
    real = Progress.on_started

    def started(self, session, member, acked):
        real(self, session, self.record.member(member.broker) or member, acked)

    patch.setattr(Progress, "on_started", started)


def _counting(patch: Patch, members: Callable[[Progress], set[Member]]) -> None:
    real = Progress._find_maximal

    def find(self):
        real(self)
        counted = members(self) - {self.me}
        self._awaited = [each for each in self._awaited if each.member in counted]

    patch.setattr(Progress, "_find_maximal", find)


@mistake
def who_was_proposed_does_not_count_before_the_record_says_so(patch: Patch) -> None:
    _counting(patch, lambda self: set(self.record.isr))


@mistake
def who_was_proposed_to_leave_does_not_count_any_more(patch: Patch) -> None:
    _counting(patch, lambda self: set(self.record.isr if self.proposed is None else self.proposed))


@mistake
def a_follower_joins_before_it_has_reached_the_high_watermark(patch: Patch) -> None:
    real = Progress.propose
    patch.setattr(
        Progress, "propose", lambda self, high, end, now: real(self, EntryIndex(0), end, now)
    )


@mistake
def a_follower_joins_without_what_the_leader_had_when_it_was_elected(patch: Patch) -> None:
    real = Progress.__init__

    def begin(self, me, record, version, inherited_end, *others):
        real(self, me, record, version, EntryIndex(0), *others)

    patch.setattr(Progress, "__init__", begin)


@mistake
def a_new_leader_takes_its_high_watermark_for_the_partitions(patch: Patch) -> None:
    patch.setattr(Replica, "hw_known", property(lambda self: True))


@mistake
def epochs_are_not_checked(patch: Patch) -> None:
    for each in (follower, replica):
        patch.setattr(each, "epoch_refusal", lambda epoch, asked: None)


@mistake
def too_few_in_sync_replicas_are_enough(patch: Patch) -> None:
    patch.setattr(Progress, "enough", property(lambda self: True))


@mistake
def a_leader_that_starts_again_goes_on_in_its_epoch(patch: Patch) -> None:
    patch.setattr(election, "resume", lambda record, me: Unchanged(Obstacle.SAME, record))


@mistake
def records_are_given_up_while_a_replica_may_bring_them_back(patch: Patch) -> None:
    patch.setattr(election, "awaited", lambda record, registered: ())


@mistake
def a_leader_does_not_hear_of_changes_of_its_isr(patch: Patch) -> None:
    patch.setattr(Progress, "on_changed", lambda self, record, version: False)


@mistake
def a_follower_that_is_behind_its_leaders_start_goes_on(patch: Patch) -> None:
    real = follower.preparation

    def prepared(state, agreed, hole):
        return Continue() if agreed.begin is not None else real(state, agreed, hole)

    patch.setattr(follower, "preparation", prepared)


@mistake
def a_follower_believes_in_entries_that_it_does_not_have(patch: Patch) -> None:
    def learned(self, state, leader_hw):
        if leader_hw <= state.high_watermark.entry:
            return state
        return bounds.replicated(state, self._boundary(leader_hw, state.log_end))

    patch.setattr(Replica, "_learned", learned)


# The first run that finds each of the rarest, when last looked. If it does not, all are tried.
FOUND = {
    "a_follower_counts_from_its_start_with_all_that_is_in_its_log": 251,
    "a_leader_ignores_its_followers_generations": 362,
    "who_was_proposed_does_not_count_before_the_record_says_so": 63,
    "a_follower_joins_before_it_has_reached_the_high_watermark": 97,
    "records_are_given_up_while_a_replica_may_bring_them_back": 343,
}


@pytest.mark.slow
@pytest.mark.parametrize("plant", MISTAKES, ids=lambda plant: plant.__name__)
@pytest.mark.parametrize(
    "first", [FOUND, pytest.param({}, marks=pytest.mark.full)], ids=["recorded", "anew"]
)
def test_a_mutated_rule_is_found(plant, first, monkeypatch):
    plant(monkeypatch)
    name = plant.__name__
    seeds = [*([first[name]] if name in first else []), *range(4 * RUNS)]
    with pytest.raises((AssertionError, ValueError)):
        deque(map(run, seeds), maxlen=0)
