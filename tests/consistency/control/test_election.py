"""The changes of a partition's record: elections, the ISR and moves."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from spark_stream.consistency.control import election
from spark_stream.consistency.control.election import LogEnd, Obstacle, Unchanged
from spark_stream.consistency.control.partition_record import Member, PartitionRecord

A, B, C, D = (Member(broker, "1") for broker in "abcd")
ALIVE = {"a": "1", "b": "1", "c": "1", "d": "1"}


def record(leader: str | None = "a", isr=(A, B, C), replicas="abc", **changes) -> PartitionRecord:
    return PartitionRecord(tuple(replicas), leader, 5, tuple(isr), **changes)


def why(outcome: election.Outcome) -> Obstacle:
    assert isinstance(outcome, Unchanged)
    return outcome.why


def without(*brokers: str) -> dict[str, str]:
    return {broker: each for broker, each in ALIVE.items() if broker not in brokers}


# -- leaders --------------------------------------------------------------------------------------


def test_a_new_partition_is_led_by_its_first_replica_that_is_alive():
    made = election.create("abc", without("a"))
    assert made == PartitionRecord(("a", "b", "c"), "b", 0, (B, C))
    assert election.create("ab", {"c": "1"}) is None


def test_of_the_in_sync_replicas_that_are_alive_the_first_is_elected():
    elected = election.elect(record(), without("a"))
    assert elected == replace(record(), leader="b", leader_epoch=6, isr=(B, C))


def test_a_leader_that_is_alive_is_not_replaced():
    assert why(election.elect(record(), ALIVE)) is Obstacle.LED


def test_a_leader_that_comes_back_in_another_generation_is_replaced():
    elected = election.elect(record(), ALIVE | {"a": "2"})
    assert (elected.leader, elected.isr) == ("b", (B, C))


@pytest.mark.rule("leader election", "consistency/control/election.py")
@pytest.mark.parametrize("alive", [{"c": "1"}, {"a": "2", "b": "2", "c": "1"}, {}])
def test_only_isr_members_of_the_present_generation_are_elected(alive):
    outcome = election.elect(record("a", (A, B)), alive)
    assert why(outcome) is Obstacle.NOBODY_IN_SYNC
    assert outcome.record == record("a", (A, B))


def ends(**logs: tuple[str, int, int]) -> dict[str, LogEnd]:
    return {broker: LogEnd(*log) for broker, log in logs.items()}


BACK = {"a": "2", "b": "2", "c": "1"}


def test_when_no_member_can_return_the_member_with_the_longest_log_leads():
    """A higher last epoch is longer than more entries. Replicas outside the ISR are no
    candidates."""
    given_up = election.elect_longest(
        record("a", (A, B)), ends(a=("2", 4, 90), b=("2", 5, 10), c=("1", 5, 99)), BACK
    )
    assert given_up == replace(record(), leader="b", leader_epoch=6, isr=(Member("b", "2"),))


def test_of_logs_with_the_same_last_epoch_the_longest_leads():
    found = election.elect_longest(record("a", (A, B)), ends(a=("2", 5, 90), b=("2", 5, 91)), BACK)
    assert found.leader == "b"


@pytest.mark.rule(
    "unclean elections: the loss of committed records", "consistency/control/election.py"
)
def test_elect_longest_waits_for_a_member_that_may_come_back():
    outcome = election.elect_longest(
        record("a", (A, B)), ends(a=("2", 5, 90)), {"a": "2", "b": "1"}
    )
    assert why(outcome) is Obstacle.AWAITED


def test_an_unclean_election_does_not_wait_for_an_unregistered_member():
    found = election.elect_longest(record("a", (A, B)), ends(a=("2", 5, 90)), {"a": "2"})
    assert found.leader == "a"


@pytest.mark.parametrize("unclean", [False, True])
def test_elect_longest_is_refused_while_a_member_is_alive(unclean):
    outcome = election.elect_longest(
        record("a", (A, B)), ends(b=("1", 5, 3), c=("1", 5, 90)), ALIVE, unclean=unclean
    )
    assert why(outcome) is Obstacle.ELECTABLE


def test_an_unclean_election_takes_any_live_replica_immediately():
    asked = record("a", (A, B)), ends(c=("1", 3, 7)), ALIVE
    assert why(election.elect_longest(*asked)) is Obstacle.AWAITED
    found = election.elect_longest(*asked, unclean=True)
    assert found == replace(record(), leader="c", leader_epoch=6, isr=(C,))


def test_without_a_live_replica_no_leader_is_elected():
    assert why(election.elect_longest(record(), {}, {}, unclean=True)) is Obstacle.NOBODY_ALIVE


def test_an_epoch_rises_above_the_logs_last_one_with_an_older_store():
    found = election.elect_longest(record("a", (A,)), ends(a=("2", 9, 1)), {"a": "2"})
    assert found.leader_epoch == 10


def test_a_leader_that_starts_again_begins_a_new_epoch_unless_it_has_no_followers():
    assert election.resume(record(), A) == replace(record(), leader_epoch=6)
    assert why(election.resume(record(), B)) is Obstacle.NOT_THE_LEADER
    assert why(election.resume(record(), Member("a", "2"))) is Obstacle.NOT_THE_LEADER
    assert why(election.resume(record("a", (A,), "a"), A)) is Obstacle.SAME


def test_a_leader_that_resigns_leaves_the_isr_and_the_next_member_leads():
    given_up = election.resign(record(), A, without("b"))
    assert given_up == replace(record(), leader="c", leader_epoch=6, isr=(C,))
    assert why(election.resign(record(), B, ALIVE)) is Obstacle.NOT_THE_LEADER
    assert why(election.resign(record(), A, {"a": "1"})) is Obstacle.ONLY_MEMBER


def test_the_preferred_leader_leads_again_once_it_is_in_sync():
    assert election.prefer(record("b"), ALIVE) == replace(record(), leader_epoch=6)
    assert why(election.prefer(record("a"), ALIVE)) is Obstacle.SAME
    assert why(election.prefer(record("b", (B, C)), ALIVE)) is Obstacle.NOT_PREFERRED
    assert why(election.prefer(record("b"), without("a"))) is Obstacle.NOT_PREFERRED


# -- in-sync replicas -----------------------------------------------------------------------------


def test_the_leader_of_the_epoch_sets_the_isr():
    assert election.propose_isr(record(), A, 5, (C, A)) == replace(record(), isr=(A, C))


@pytest.mark.parametrize(
    ("me", "epoch", "members", "obstacle"),
    [
        (B, 5, (A, B), Obstacle.NOT_THE_LEADER),
        (Member("a", "2"), 5, (Member("a", "2"),), Obstacle.NOT_THE_LEADER),
        (A, 4, (A, B), Obstacle.NOT_THE_LEADER),
        (A, 6, (A, B), Obstacle.NOT_THE_LEADER),
        (A, 5, (B, C), Obstacle.NOT_REPLICAS),
        (A, 5, (A, D), Obstacle.NOT_REPLICAS),
        (A, 5, (A, B, Member("b", "2")), Obstacle.NOT_REPLICAS),
        (A, 5, (C, B, A), Obstacle.SAME),
    ],
)
def test_only_the_leader_changes_the_isr_and_only_to_replicas(me, epoch, members, obstacle):
    assert why(election.propose_isr(record(), me, epoch, members)) is obstacle


def test_a_follower_that_cannot_vouch_for_its_copy_leaves_unless_it_is_the_last():
    assert election.leave_isr(record(), C) == replace(record(), isr=(A, B))
    assert why(election.leave_isr(record(), A)) is Obstacle.LEADS
    assert why(election.leave_isr(record(), Member("c", "2"))) is Obstacle.NOT_A_MEMBER
    assert why(election.leave_isr(record(None, (C,)), C)) is Obstacle.ONLY_MEMBER


BROKERS = st.sampled_from("abcd")

# -- moves ----------------------------------------------------------------------------------------


@pytest.mark.rule("moves of partitions to other brokers", "consistency/control/election.py")
def test_a_move_ends_when_all_its_targets_are_in_sync_and_one_of_them_leads():
    moving = election.begin_move(record("a", (A, B, C)), ("d", "c"))
    assert moving == replace(record(), replicas=tuple("dcab"), adding=("d",), removing=("a", "b"))
    assert why(election.finish_move(moving, ALIVE)) is Obstacle.NOT_IN_SYNC
    ready = election.propose_isr(moving, A, 5, (A, B, C, D))
    assert why(election.finish_move(ready, without("d"))) is Obstacle.NOT_IN_SYNC
    assert election.finish_move(ready, ALIVE) == PartitionRecord(("d", "c"), "d", 6, (D, C))


def test_a_leader_that_stays_keeps_its_epoch_when_a_move_ends():
    moving = election.begin_move(record("a", (A, B)), ("a", "b"))
    done = election.finish_move(moving, ALIVE)
    assert done == PartitionRecord(("a", "b"), "a", 5, (A, B))


def test_a_cancelled_move_keeps_the_original_replicas():
    moving = election.begin_move(record("a", (A, B)), ("d", "c"))
    came = replace(moving, isr=(A, B, D), leader="d")
    back = election.cancel_move(came, ALIVE)
    assert (set(back.replicas), back.leader, back.leader_epoch) == (set("abc"), "a", 6)
    assert back.isr == (A, B)
    only_new = replace(moving, isr=(D,), leader="d")
    assert why(election.cancel_move(only_new, ALIVE)) is Obstacle.NOT_IN_SYNC


def test_without_a_move_there_is_no_move_to_finish_or_cancel():
    assert why(election.finish_move(record(), ALIVE)) is Obstacle.NOT_MOVING
    assert why(election.cancel_move(record(), ALIVE)) is Obstacle.NOT_MOVING
    assert why(election.begin_move(record(), ("a", "b", "c"))) is Obstacle.SAME


def test_a_move_that_replaces_another_removes_replicas_that_never_joined():
    moving = election.begin_move(record("a", (A, B)), ("d", "a"))
    again = election.begin_move(moving, ("a", "b"))
    assert again == replace(record("a", (A, B)), replicas=tuple("abc"), removing=("c",))
    came = replace(moving, isr=(A, B, D))
    assert election.begin_move(came, ("a", "b")).removing == ("d", "c")


@given(st.lists(st.tuples(st.lists(BROKERS, min_size=1), st.sets(BROKERS))))
def test_a_cancelled_move_keeps_the_original_replicas_after_it_replaced_another_move(moves):
    """The replicas that the earlier move added are removed too."""
    known = record("a", (A, B, C))
    for target, came in moves:
        found = election.begin_move(known, tuple(dict.fromkeys(target)))
        known = found.record if isinstance(found, Unchanged) else found
        isr = tuple(Member(each, "1") for each in known.replicas if each in {"a", *came})
        known = replace(known, isr=isr)
        assert {*known.adding, *known.removing} <= set(known.replicas)
        if known.adding or known.removing:
            assert set(election.staying(known)) == set(target)
            assert set(election.cancel_move(known, ALIVE).replicas) == set("abc")


# -- any order of changes -------------------------------------------------------------------------

ALIVES = st.dictionaries(BROKERS, st.sampled_from("12"))
TARGETS = st.lists(BROKERS, min_size=1, unique=True)
ENDS = st.builds(LogEnd, st.sampled_from("12"), st.integers(-1, 9), st.integers(0, 9))


def asked(data: st.DataObject, known: PartitionRecord) -> election.Outcome:
    """Any change, by any broker."""
    alive, me = data.draw(ALIVES), Member(data.draw(BROKERS), data.draw(st.sampled_from("12")))
    leader = known.member(known.leader)
    new = {broker: Member(broker, "2") for broker in data.draw(TARGETS)}
    members = {each.broker: each for each in known.isr} | new | {leader.broker: leader}
    longest = data.draw(st.dictionaries(BROKERS, ENDS))
    changes = [
        lambda: election.elect(known, alive),
        lambda: election.elect_longest(known, longest, alive, unclean=False),
        lambda: election.elect_longest(known, longest, alive, unclean=True),
        lambda: election.resume(known, leader),
        lambda: election.resign(known, leader, alive),
        lambda: election.prefer(known, alive),
        lambda: election.propose_isr(known, leader, known.leader_epoch, members.values()),
        lambda: election.leave_isr(known, me),
        lambda: election.begin_move(known, data.draw(TARGETS)),
        lambda: election.finish_move(known, alive),
        lambda: election.cancel_move(known, alive),
    ]
    return data.draw(st.sampled_from(changes))()


@given(st.data())
def test_any_sequence_of_changes_keeps_the_records_invariants(data):
    """An epoch never falls, nor has it two leaders."""
    known = election.create(data.draw(TARGETS), ALIVE)
    for _ in range(data.draw(st.integers(1, 12))):
        after = asked(data, known)
        if isinstance(after, Unchanged):
            assert after.record == known
            continue
        assert after != known
        brokers = [each.broker for each in after.isr]
        assert len(brokers) == len(set(brokers)) > 0
        assert after.leader in brokers
        assert set(brokers) <= set(after.replicas)
        assert {*after.adding, *after.removing} <= set(after.replicas)
        assert len(after.replicas) == len(set(after.replicas))
        assert election.staying(after)
        assert after.leader_epoch >= known.leader_epoch
        if after.leader != known.leader:
            assert after.leader_epoch > known.leader_epoch
        known = after


def test_a_leader_gets_an_epoch_above_that_of_its_log():
    assert why(election.lift_epoch(record(), A, 5)) is Obstacle.SAME
    assert why(election.lift_epoch(record(), B, 8)) is Obstacle.NOT_THE_LEADER
    assert election.lift_epoch(record(), A, 8) == replace(record(), leader_epoch=9)
