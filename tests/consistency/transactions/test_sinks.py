"""A sink's batches: each committed once, and nothing stays open that nobody will end."""

from __future__ import annotations

from msgspec.structs import replace

from spark_stream.consistency.transactions import events as rules
from spark_stream.consistency.transactions import sinks
from spark_stream.consistency.transactions.sinks import Claim, Stop
from spark_stream.consistency.transactions.transactions import (
    Allotted,
    Cause,
    Content,
    Denial,
    Outcome,
    State,
    Transaction,
)
from tests.consistency.transactions.test_transactions import TIMEOUT, denied, ok, sink

CONTENT = [Content("t", 10, 77)]


def claim(run: str = "run", batch: int = 3, driver: str = "driver", planned: int = 8) -> Claim:
    return Claim("q", run, batch, TIMEOUT, driver, planned)


def opened(number: int = 5, producer: int = 70, **options) -> Transaction:
    return ok(sinks.branch(Transaction("s"), claim(**options), Allotted(number, producer), 1_000))


def committed(**options) -> Transaction:
    found = opened(**options)
    decided = rules.commit(found, "run", 5, [70], found.batch, (), CONTENT)
    return ok(rules.finish(ok(decided), 5))


def test_every_attempt_of_a_task_gets_a_separate_branch():
    first = ok(sink(Transaction("s"), "run", 0, 5, 70))
    second = ok(sink(first, "run", 0, 6, 71))
    assert (second.number, second.branches) == (5, (70, 71))
    done = ok(rules.commit(second, "run", 5, [71], 0))
    assert done.taken == (71,)


def test_a_replayed_batch_is_detected():
    found = ok(sink(Transaction("s"), "run", 3, 5, 70))
    done = ok(rules.finish(ok(rules.commit(found, "run", 5, [70], 3)), 5))
    assert done.committed_batch == 3
    assert denied(sink(done, "run", 3, 6, 71)) is Denial.DONE
    assert denied(sink(done, "another run", 3, 6, 71)) is Denial.DONE
    assert ok(sink(done, "run", 4, 6, 71)).number == 6


def test_a_batch_below_the_last_committed_one_is_stale():
    found = ok(sink(Transaction("s"), "run", 3, 5, 70))
    done = ok(rules.finish(ok(rules.commit(found, "run", 5, [70], 3)), 5))
    assert denied(sink(done, "run", 2, 6, 71)) is Denial.STALE


def test_a_new_run_fences_the_branches_of_the_old_one():
    found = ok(sink(Transaction("s"), "old", 3, 5, 70))
    taken = ok(sink(found, "new", 3, 6, 71))
    assert (taken.state, taken.cause) == (State.ABORTING, Cause.FENCED)
    assert denied(sink(taken, "new", 3, 6, 71)) is Denial.PENDING
    begun = ok(sink(ok(rules.finish(taken, 5)), "new", 3, 6, 71))
    assert (begun.number, begun.branches) == (6, (71,))
    assert denied(sink(begun, "old", 3, 7, 72)) is Denial.FENCED
    assert denied(rules.commit(begun, "old", 5, [70], 3)) is Denial.FENCED


def test_a_sink_of_another_query_is_in_use():
    found = ok(sink(Transaction("s"), "run", 0, 5, 70))
    taken = sinks.branch(found, Claim("another", "run 2", 0, TIMEOUT), Allotted(6, 71), 0)
    assert denied(taken) is Denial.IN_USE


def test_a_late_task_of_an_aborted_job_begins_no_transaction():
    def job(found: Transaction, number: int) -> Outcome:
        return sinks.branch(found, Claim("j", "j", 0, TIMEOUT), Allotted(number, 70 + number), 0)

    found = ok(job(Transaction("j"), 5))
    over = ok(rules.finish(ok(rules.abort(found, "j", 5)), 5))
    assert denied(job(over, 6)) is Denial.ABORTED


def test_a_sink_has_no_producer_id_but_its_branches():
    found = ok(sink(Transaction("s"), "run", 3, 5, 70))
    assert denied(rules.commit(found, "run", 5, [-1], 3)) is Denial.FOREIGN


def test_a_commit_of_another_batch_than_was_begun_is_refused():
    found = ok(sink(Transaction("s"), "run", 3, 5, 70))
    assert denied(rules.commit(found, "run", 5, [70], 4)) is Denial.INVALID
    assert denied(rules.commit(found, "run", 5, [70])) is Denial.INVALID


def test_a_committed_batch_keeps_its_content():
    done = committed()
    assert (done.committed_batch, done.content) == (3, (CONTENT[0],))
    begun = ok(sinks.branch(done, claim(batch=4), Allotted(6, 71), 2_000))
    assert begun.content == done.content  # until the next is committed
    assert ok(rules.commit(begun, "run", 6, [71], 4)).content is None


# -- signs of life --------------------------------------------------------------------------------


def test_a_task_without_a_branch_renews_the_transaction_of_its_batch():
    found = opened()
    later = ok(sinks.renew(found, "run", 3, 50_000))
    assert later.deadline_ms == 50_000 + TIMEOUT


def test_a_new_branch_renews_the_transaction():
    found = ok(sinks.branch(opened(), claim(), Allotted(6, 71), 50_000))
    assert found.deadline_ms == 50_000 + TIMEOUT


def test_renewal_without_an_open_transaction_of_the_batch_is_a_no_op():
    for found in (Transaction("s"), committed(), opened(batch=4), opened(run="another")):
        assert ok(sinks.renew(found, "run", 3, 50_000)) == found


def test_a_displaced_runs_renewal_is_fenced():
    found = ok(sinks.branch(opened(), claim(run="newer"), Allotted(6, 71), 1_000))
    assert denied(sinks.renew(found, "run", 3, 50_000)) is Denial.FENCED


# -- branches that fail ---------------------------------------------------------------------------


def test_a_commit_includes_no_dropped_branch():
    both = ok(sinks.branch(opened(), claim(), Allotted(6, 71), 1_000))
    left = ok(sinks.drop(both, "run", 5, 70))
    assert (left.state, left.branches, left.dropped) == (State.OPEN, (71,), (70,))
    assert ok(sinks.drop(left, "run", 5, 70)) == left  # a retry
    assert denied(rules.commit(left, "run", 5, [70, 71], 3)) is Denial.FOREIGN
    assert ok(rules.commit(left, "run", 5, [71], 3)).taken == (71,)


def test_a_dropped_branch_joins_no_partition():
    left = ok(sinks.drop(opened(), "run", 5, 70))
    assert denied(rules.join(left, 5, 70, 0)) is Denial.FOREIGN


def test_only_the_owner_drops_a_branch():
    found = opened()
    assert denied(sinks.drop(found, "another", 5, 70)) is Denial.FENCED
    assert denied(sinks.drop(found, "run", 5, 99)) is Denial.FOREIGN


def test_no_branch_of_a_decided_or_finished_transaction_is_dropped():
    decided = ok(rules.commit(opened(), "run", 5, [70], 3))
    for found in (decided, committed(), ok(rules.abort(opened(), "run", 5))):
        assert ok(sinks.drop(found, "run", 5, 70)) == found
    assert ok(sinks.drop(opened(), "run", 4, 70)) == opened()


# -- drivers that give up -------------------------------------------------------------------------


def test_a_driver_aborts_its_plans_of_a_batch():
    stopped = ok(sinks.stop(opened(), Stop("driver", 8, 3)))
    assert (stopped.state, stopped.cause) == (State.ABORTING, Cause.ASKED)


def test_a_driver_aborts_only_its_batch():
    for asked in (Stop("driver", 7, 3), Stop("another", 9, 3), Stop("driver", 9, 2)):
        assert ok(sinks.stop(opened(), asked)) == opened()
    decided = ok(rules.commit(opened(), "run", 5, [70], 3))
    for found in (decided, committed()):
        assert ok(sinks.stop(found, Stop("driver", 9, 3))) == found


def test_a_late_task_of_a_stopped_batch_begins_no_transaction():
    over = ok(rules.finish(ok(sinks.stop(opened(), Stop("driver", 8, 3))), 5))
    assert denied(sinks.branch(over, claim(), Allotted(6, 71), 1_000)) is Denial.ABORTED
    again = ok(sinks.branch(over, claim(run="next run"), Allotted(6, 71), 1_000))
    assert (again.state, again.number) == (State.OPEN, 6)


# -- batches without rows, and other names --------------------------------------------------------


def test_an_empty_batch_aborts_a_dead_runs_transaction():
    settled = ok(sinks.settle(opened(), claim(run="new")))
    assert (settled.state, settled.cause, settled.instance) == (
        State.ABORTING,
        Cause.FENCED,
        "new",
    )
    assert denied(rules.commit(settled, "run", 5, [70], 3)) is Denial.FENCED


def test_an_empty_batch_aborts_failed_attempts():
    settled = ok(sinks.settle(opened(), claim()))
    assert (settled.state, settled.cause) == (State.ABORTING, Cause.ASKED)


def test_a_batch_without_rows_leaves_no_record():
    assert ok(sinks.settle(Transaction("s"), claim())) == Transaction("s")


def test_an_empty_replay_is_detected():
    assert denied(sinks.settle(committed(), claim(run="new"))) is Denial.DONE
    assert denied(sinks.settle(committed(), claim(run="new", batch=2))) is Denial.STALE


def test_a_renamed_sink_continues_after_its_last_batch():
    given = ok(sinks.hand_over(committed(), "new"))
    taken = ok(sinks.inherit(Transaction("other"), given))
    assert denied(sinks.branch(taken, claim(run="new"), Allotted(6, 71), 0)) is Denial.DONE
    assert taken.content == (CONTENT[0],)
    assert denied(sinks.branch(given, claim(batch=4), Allotted(6, 71), 0)) is Denial.FENCED


def test_the_open_transaction_under_the_old_name_is_aborted():
    given = ok(sinks.hand_over(opened(), "new"))
    assert (given.state, given.cause) == (State.ABORTING, Cause.FENCED)
    assert denied(sinks.hand_over(given, "run")) is Denial.FENCED


def test_another_querys_sink_inherits_nothing():
    mine = committed()
    later = replace(mine, committed_batch=9)
    assert ok(sinks.inherit(mine, replace(later, query="another"))) == mine
    assert ok(sinks.inherit(mine, replace(mine, committed_batch=2))) == mine
    assert ok(sinks.inherit(mine, later)) == later
