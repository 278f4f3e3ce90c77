"""A leader's followers: replication, and the conditions for leaving and joining the ISR."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from spark_stream.consistency.control.partition_record import Member, PartitionRecord
from spark_stream.consistency.partition.progress import Ages, IsrSettings, Progress

A, B, C = (Member(broker, "1") for broker in "abc")
LAG = 6_400
STEP = LAG // 64


def begun(progress: Progress, session: int, member: Member, acked: int) -> None:
    """The member's session begins, and it reports that it has what both share."""
    progress.on_started(session, member, acked)
    progress.on_reported(session, acked)


def leading(isr=(A, B, C), inherited=0, least=1, alive=None, replicas="abc") -> Progress:
    record = PartitionRecord(tuple(replicas), "a", 5, tuple(isr))
    generations = {"a": "1", "b": "1", "c": "1"} if alive is None else alive
    settings = IsrSettings(least, LAG)
    return Progress(A, record, 7, inherited, settings, generations.get, 0)


def with_isr(progress: Progress, *isr: Member) -> PartitionRecord:
    return replace(progress.record, isr=isr)


# -- replication ----------------------------------------------------------------------------------


def test_high_watermark_is_that_of_the_slowest_in_sync_replica():
    progress = leading()
    progress.on_started(1, B, 3)
    progress.on_started(2, C, 2)
    assert progress.replicated(9) == 2
    progress.on_reported(2, 8)
    assert progress.replicated(9) == 3


def test_a_member_that_has_never_reported_holds_the_high_watermark():
    progress = leading()
    progress.on_started(1, B, 3)
    assert progress.replicated(9) == 0


def test_a_member_may_have_surplus_entries_until_its_first_report():
    progress = leading()
    progress.on_started(1, B, 0)
    begun(progress, 2, C, 0)
    assert not progress.all_truncated
    progress.on_reported(1, 0)
    assert progress.all_truncated
    progress.on_started(3, B, 0)  # in another session it has no more
    assert progress.all_truncated


def test_a_silent_member_is_removed_from_an_empty_partition_too():
    progress = leading()
    begun(progress, 1, B, 0)
    progress.on_started(2, C, 0)
    due = progress.due(0)
    assert due is not None
    assert progress.propose(0, 0, due - 1) is None
    assert progress.propose(0, 0, due) == (A, B)


def test_a_lone_leaders_entries_are_replicated():
    progress = leading(isr=(A,))
    assert progress.alone
    assert progress.replicated(9) == 9


def test_high_watermark_ignores_followers_outside_isr():
    progress = leading(isr=(A, B))
    progress.on_started(1, B, 5)
    progress.on_started(2, C, 1)
    assert progress.replicated(9) == 5


@pytest.mark.parametrize(("least", "replicas", "enough"), [(2, "abc", False), (2, "a", True)])
def test_high_watermark_does_not_move_with_too_few_in_sync_replicas(least, replicas, enough):
    """A partition with fewer replicas than min.insync.replicas needs all it has."""
    progress = leading(isr=(A,), least=least, replicas=replicas)
    assert progress.enough is progress.alone is enough
    assert progress.replicated(9) == (9 if enough else 0)


def test_a_report_counts_only_for_its_generation():
    progress = leading(isr=(A, B))
    progress.on_started(1, Member("b", "2"), 9)
    assert progress.replicated(9) == 0


def test_reports_count_after_their_session_but_late_ones_are_ignored():
    progress = leading(isr=(A, B))
    progress.on_started(1, B, 5)
    progress.on_left(1)
    progress.on_reported(1, 9)
    assert progress.replicated(9) == 5
    progress.on_started(2, B, 4)  # it vouched for more than it has: the lower is true
    progress.on_reported(1, 9)
    assert progress.replicated(9) == 4


def test_a_new_session_of_a_broker_ends_its_earlier_one():
    progress = leading(isr=(A, B))
    progress.on_started(1, B, 5)
    progress.on_started(2, B, 5)
    assert list(progress.sessions()) == [(2, B, 5)]


# -- who leaves -----------------------------------------------------------------------------------


def test_a_member_that_lacks_an_entry_for_too_long_is_removed():
    progress = leading()
    begun(progress, 1, B, 10)
    begun(progress, 2, C, 9)
    progress.on_appended(9, 1_000)
    assert progress.propose(9, 10, 1_000 + LAG) is None
    assert progress.propose(9, 10, 1_000 + LAG + 2 * STEP) == (A, B)


def test_a_member_that_is_always_a_little_behind_stays():
    progress = leading()
    progress.on_started(1, B, 0)
    progress.on_started(2, C, 0)
    for now in range(0, 5 * LAG, 50):
        entry = now // 50
        progress.on_appended(entry, now)
        for session in (1, 2):
            progress.on_reported(session, max(0, entry - 20))  # 1,000 microseconds behind
        assert progress.propose(0, entry + 1, now) is None


def test_an_idle_partition_keeps_its_members_and_an_append_gives_them_time():
    progress = leading(isr=(A, B))
    begun(progress, 1, B, 5)
    late = 1000 * LAG
    assert progress.due(5) is None
    assert progress.propose(5, 5, late) is None
    progress.on_appended(5, late)
    assert progress.propose(5, 6, late + LAG) is None
    due = progress.due(6)
    assert due is not None
    assert late + LAG < due <= late + LAG + 2 * STEP
    assert progress.propose(5, 6, due) == (A,)


@pytest.mark.parametrize("alive", [{"a": "1"}, {"a": "1", "b": "2"}], ids=["dead", "another"])
def test_a_member_not_alive_in_its_generation_is_removed_immediately(alive):
    progress = leading(isr=(A, B), alive=alive)
    progress.on_started(1, B, 5)
    assert progress.propose(5, 5, 1) == (A,)


def test_a_member_that_refuses_writes_is_removed_until_it_reports_again():
    progress = leading()
    begun(progress, 1, B, 5)
    begun(progress, 2, C, 5)
    progress.refuses_writes(1)
    progress.on_left(1)
    assert progress.propose(5, 5, 0) == (A, C)
    progress.on_changed(with_isr(progress, A, C), 8)
    progress.on_started(3, B, 5)
    progress.refuses_writes(1)  # that session is over
    assert progress.propose(5, 5, 0) is None
    progress.on_reported(3, 5)
    assert progress.propose(5, 5, 0) == (A, B, C)


def test_a_refusal_of_an_ended_session_does_not_remove_its_follower():
    progress = leading(isr=(A, B))
    begun(progress, 1, B, 5)
    begun(progress, 2, B, 5)
    progress.refuses_writes(1)
    assert progress.propose(5, 5, 0) is None


@pytest.mark.rule(
    "the ISR and the high watermark",
    "consistency/partition/progress.py",
)
def test_a_removed_member_counts_until_its_removal_is_on_record():
    progress = leading(isr=(A, B), alive={"a": "1"})
    progress.on_started(1, B, 5)
    assert progress.propose(5, 9, 1) == (A,)
    assert progress.replicated(9) == 5
    assert progress.on_changed(with_isr(progress, A), 8)
    assert progress.replicated(9) == 9


# -- who joins ------------------------------------------------------------------------------------


@pytest.mark.rule(
    "the ISR and the high watermark",
    "consistency/partition/progress.py",
)
def test_a_follower_joins_only_with_the_high_watermark_and_the_leaders_first_entry():
    progress = leading(isr=(A, B), inherited=10)
    begun(progress, 1, B, 12)
    begun(progress, 2, C, 9)
    assert progress.propose(5, 12, 1) is None  # it has reached the high watermark only
    assert progress.on_reported(2, 10)
    assert progress.propose(11, 12, 1) is None  # it lacks entry 10 of the replicated ones
    progress.on_reported(2, 11)
    assert progress.propose(11, 12, 1) == (A, B, C)


@pytest.mark.parametrize("alive", [{"a": "1", "b": "1"}, {"a": "1", "b": "1", "c": "2"}])
def test_a_follower_joins_only_while_it_is_alive_in_the_generation_of_its_session(alive):
    progress = leading(isr=(A, B), alive=alive)
    begun(progress, 1, B, 5)
    begun(progress, 2, C, 5)
    assert progress.propose(5, 5, 1) is None


def test_a_broker_that_is_no_replica_does_not_join():
    progress = leading(isr=(A, B), replicas="ab")
    begun(progress, 1, B, 5)
    begun(progress, 2, C, 5)
    assert progress.propose(5, 5, 1) is None


def test_a_broker_in_another_generation_replaces_its_old_member():
    again = Member("b", "2")
    progress = leading(isr=(A, B), alive={"a": "1", "b": "2"})
    begun(progress, 1, again, 5)
    assert progress.propose(5, 5, 1) == (A, again)
    assert set(progress.maximal) == {B, again}


def test_a_restarted_follower_joins_only_with_a_new_session():
    """It may have lost reported entries. The leader has not detected the end of its connection."""
    alive = {"a": "1", "b": "1"}
    progress = leading(isr=(A,), alive=alive)
    begun(progress, 1, B, 5)
    del alive["b"]
    progress.end_sessions_of_dead()
    alive["b"] = "1"
    progress.end_sessions_of_dead()
    assert progress.propose(5, 5, 1) is None
    progress.on_reported(1, 5)
    assert progress.propose(5, 5, 2) is None
    begun(progress, 2, B, 0)
    assert progress.propose(5, 5, 3) is None
    progress.on_reported(2, 5)
    assert progress.propose(5, 5, 4) == (A, B)


def test_a_proposed_member_counts_until_a_refusal():
    progress = leading(isr=(A,))
    begun(progress, 1, B, 5)
    assert progress.propose(5, 5, 1) == (A, B)
    progress.on_left(1)
    assert progress.replicated(9) == 5
    progress.on_refused(7, with_isr(progress, A), 8)
    assert progress.replicated(9) == 9


def test_an_isr_change_that_loses_its_compare_and_set_changes_nothing():
    progress = leading(isr=(A, B))
    begun(progress, 1, B, 5)
    begun(progress, 2, C, 5)
    assert progress.propose(5, 5, 1) == (A, B, C)
    assert progress.record.isr == (A, B)
    found = with_isr(progress, A)  # somebody had taken the other away
    progress.on_refused(7, found, 9)
    assert (progress.record, progress.version, progress.proposed) == (found, 9, None)


def test_a_late_refusal_does_not_end_a_later_proposal():
    """A proposed member that may be on record counts, though it would not be proposed again."""
    progress = leading(isr=(A,))
    begun(progress, 1, B, 5)
    assert progress.propose(5, 5, 1) == (A, B)
    assert progress.on_changed(with_isr(progress, A), 8)
    assert progress.propose(5, 5, 1) == (A, B)
    progress.on_left(1)
    progress.on_refused(7, with_isr(progress, A), 8)
    assert progress.proposed == (A, B)
    assert progress.replicated(9) == 5
    progress.on_refused(8, with_isr(progress, A), 9)
    assert progress.replicated(9) == 9


def test_one_proposal_at_a_time_and_older_versions_are_ignored():
    progress = leading(isr=(A,))
    begun(progress, 1, B, 5)
    assert progress.propose(5, 5, 1) == (A, B)
    begun(progress, 2, C, 5)
    assert progress.propose(5, 5, 2) is None
    assert progress.due(9) is None
    assert not progress.on_changed(with_isr(progress, A), 7)
    assert progress.proposed == (A, B)
    assert progress.on_changed(with_isr(progress, A, B), 8)
    assert progress.propose(5, 5, 3) == (A, B, C)


def test_a_deposed_leader_makes_no_proposal():
    progress = leading(isr=(A, B), alive={"a": "1"})
    begun(progress, 1, B, 5)
    assert progress.propose(5, 5, 1) == (A,)
    progress.on_refused(7, replace(progress.record, leader="b", leader_epoch=6), 8)
    assert progress.propose(5, 5, 10 * LAG) is None
    assert progress.due(9) is None
    assert progress.replicated(9) == 5


def test_a_proposal_that_may_have_been_on_record_counts_when_its_member_is_elected():
    """Its answer was lost, and then the new member, which has less, became the leader."""
    progress = leading(isr=(A, B))
    begun(progress, 1, B, 9)
    begun(progress, 2, C, 5)
    assert progress.propose(5, 9, 1) == (A, B, C)
    progress.on_promised(1, 100.0)
    progress.on_left(2)
    progress.on_refused(7, replace(progress.record, leader="c", leader_epoch=6, isr=(C,)), 9)
    assert progress.replicated(9) == 5
    assert progress.leads_until() == 0.0


def test_a_follower_close_behind_joins_while_appends_go_on_without_a_pause():
    """Its reports are always late: the high watermark waits for it, until it has reached it."""
    progress = leading(isr=(A,))
    begun(progress, 1, B, 0)
    high, proposed = 0, None
    for entry in range(300):
        progress.on_appended(entry, 10 * entry)
        progress.on_reported(1, max(0, entry - 3))
        high = max(high, progress.replicated(entry + 1))
        proposed = progress.propose(high, entry + 1, 10 * entry)
        if proposed:
            break
    assert proposed == (A, B)
    assert progress.acked(B) >= high


def test_high_watermark_ignores_an_admitted_follower_that_fell_behind():
    progress = leading(isr=(A,))
    progress.on_appended(0, 0)
    begun(progress, 1, B, 0)
    assert progress.propose(1, 1, 10) is None
    assert progress.maximal == (B,)
    due = progress.due(1)
    assert due is not None
    assert due < LAG // 4
    assert progress.propose(1, 1, due) is None
    assert progress.maximal == ()


def test_a_follower_far_behind_never_holds_the_high_watermark():
    progress = leading(isr=(A,), inherited=5)
    begun(progress, 1, B, 3)  # the age of inherited entries is unknown
    progress.propose(5, 5, 1)
    assert progress.maximal == ()


# -- ages -----------------------------------------------------------------------------------------


@given(st.lists(st.tuples(st.integers(0, 3 * LAG), st.integers(1, 5)), max_size=60))
def test_an_entrys_age_is_exact_to_within_a_step(appends):
    ages = Ages(0, LAG)
    now, times = 0, []
    for passes, count in appends:
        now += passes
        ages.on_appended(len(times), now)
        times += [now] * count
        assert len(ages._times) <= 64 + 4
    for entry, time in enumerate(times):
        told = now - ages.time_of(entry)
        age = now - time
        assert age <= told < age + STEP or (age > LAG and told > LAG)


def test_a_record_that_names_another_leader_is_a_programmers_error():
    record = PartitionRecord(("a", "b"), "b", 5, (B,))
    with pytest.raises(ValueError, match="does not lead"):
        Progress(A, record, 1, 0, IsrSettings(), lambda _: None, 0)


# -- replicas that move ---------------------------------------------------------------------------


def test_the_progress_of_a_moved_replica_is_removed():
    progress = leading(isr=(A, B))
    begun(progress, 1, B, 5)
    begun(progress, 2, C, 5)
    moved = replace(progress.record, replicas=("a", "b"))
    assert progress.on_changed(moved, 8)
    assert not progress.on_reported(2, 6)
    assert progress.propose(5, 5, 1) is None
    back = replace(moved, replicas=("a", "b", "c"), adding=("c",))
    assert progress.on_changed(back, 9)
    assert progress.propose(5, 5, 1) is None
    begun(progress, 3, C, 0)
    assert progress.propose(5, 5, 1) is None
    progress.on_reported(3, 5)
    assert progress.propose(5, 5, 1) == (A, B, C)


def test_a_replica_removed_and_added_again_has_no_progress():
    progress = leading(isr=(A, B))
    begun(progress, 1, B, 5)
    coming = replace(progress.record, adding=("c",))
    assert progress.on_changed(coming, 8)
    begun(progress, 2, C, 5)
    assert progress.on_changed(coming, 12)  # by others, more than once
    assert progress.propose(5, 5, 1) is None
    assert progress.acked(C) is None


def test_an_added_replica_keeps_its_session_when_it_joins():
    progress = leading(isr=(A, B))
    begun(progress, 1, B, 5)
    assert progress.on_changed(replace(progress.record, adding=("c",)), 8)
    begun(progress, 2, C, 5)
    proposed = progress.propose(5, 5, 1)
    assert proposed == (A, B, C)
    assert progress.on_changed(with_isr(progress, *proposed), 9)
    assert progress.acked(C) == 5


def test_a_follower_joins_with_its_first_report_and_not_before():
    """Until then its log may be untruncated, so it could be elected with surplus entries."""
    progress = leading(isr=(A,))
    progress.on_started(1, B, 5)
    assert progress.propose(5, 5, 1) is None
    assert progress.on_reported(1, 5)  # it has no new entry: its surplus entries were truncated
    assert not progress.on_reported(1, 5)
    assert progress.propose(5, 5, 2) == (A, B)
    progress.on_refused(1, progress.record, 1)
    progress.on_started(2, B, 5)
    assert progress.propose(5, 5, 3) is None


@pytest.mark.rule("leadership without a lease, by promises", "consistency/replication/promises.py")
def test_a_leader_continues_until_the_first_promise_expires():
    progress = leading()
    begun(progress, 1, B, 0)
    begun(progress, 2, C, 0)
    assert progress.leads_until() == 0.0
    progress.on_promised(1, 9.0)
    assert progress.leads_until() == 0.0, "C has promised nothing"
    progress.on_promised(2, 7.0)
    progress.on_promised(1, 8.0)  # an earlier promise that comes late
    assert progress.leads_until() == 7.0
    progress.on_left(2)
    assert progress.leads_until() == 7.0, "the promise lasts, whatever becomes of the connection"
    progress.on_promised(2, 20.0)  # by a session that is over
    assert progress.leads_until() == 7.0


def test_a_proposed_member_has_to_promise_too():
    progress = leading(isr=(A, B))
    begun(progress, 1, B, 0)
    progress.on_promised(1, 9.0)
    assert progress.leads_until() == 9.0
    begun(progress, 2, C, 0)
    assert progress.propose(0, 0, 0) == (A, B, C)
    assert progress.leads_until() == 0.0, "C may be on record, and could be elected"


def test_an_only_member_and_a_leader_with_unclean_elections_need_their_lease():
    assert leading(isr=(A,)).leads_until() is None
    progress = leading(isr=(A, B))
    begun(progress, 1, B, 0)
    progress.on_promised(1, 9.0)
    progress.configure(IsrSettings(unclean=True))
    assert progress.leads_until() is None


def test_a_promise_counts_only_for_its_generation():
    progress = leading(isr=(A, B))
    begun(progress, 1, Member("b", "2"), 0)
    progress.on_promised(1, 9.0)
    assert progress.leads_until() == 0.0
