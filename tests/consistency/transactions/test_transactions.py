"""A transaction's life: only the transitions of the table, by the permitted callers."""

from __future__ import annotations

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule
from msgspec.structs import replace

from spark_stream.consistency.partition.producers import EPOCH_MAX
from spark_stream.consistency.transactions import events as rules
from spark_stream.consistency.transactions import sinks
from spark_stream.consistency.transactions.sinks import Claim, Stop
from spark_stream.consistency.transactions.transactions import (
    ABORTS,
    COMMITS,
    DECIDED,
    FENCED_KEPT,
    TABLE,
    Allotted,
    Cause,
    Denial,
    Denied,
    Event,
    Joined,
    Outcome,
    PositionOf,
    State,
    Transaction,
)
from tests.examples import examples

AT = Joined("t", "id", 0)
OTHER = Joined("t", "id", 1)
TIMEOUT = 60_000


def ok(outcome: Outcome) -> Transaction:
    assert isinstance(outcome, Transaction), outcome
    return outcome


def denied(outcome: Outcome) -> Denial:
    assert isinstance(outcome, Denied), outcome
    return outcome.why


def owned(instance: str = "a") -> Transaction:
    return ok(rules.init(Transaction("x"), instance, TIMEOUT, 1_000))


def opened(number: int = 5, producer: int = 70) -> Transaction:
    return ok(rules.begin(owned(), "a", -1, Allotted(number, producer), 1_000))


def joined() -> Transaction:
    found = opened()
    return ok(rules.join(found, found.number, found.producer_id, found.epoch))


def committed() -> Transaction:
    return ok(rules.finish(ok(rules.commit(joined(), "a", 5, [70])), 5))


def aborted(cause: str = "asked") -> Transaction:
    asked = {
        "asked": lambda: rules.abort(joined(), "a", 5),
        "expired": lambda: rules.expire(joined(), 5, joined().deadline_ms),
        "killed": lambda: rules.kill(joined()),
    }[cause]
    return ok(rules.finish(ok(asked()), 5))


def reserved(number: int = 6) -> Transaction:
    """The next transaction of the owner has this number already."""
    decided = rules.reserve(ok(rules.commit(joined(), "a", 5, [70])), number)
    return ok(rules.finish(decided, 5))


def started(found: Transaction, number: int = 6) -> Transaction:
    return rules.begun_if_reserved(found, number, "here", 2_000)


def sink(found: Transaction, run: str, batch: int, number: int, producer: int) -> Outcome:
    return sinks.branch(found, Claim("q", run, batch, TIMEOUT), Allotted(number, producer), 1_000)


def test_an_id_that_was_just_taken_over_counts_as_used():
    """Else the sweep would remove it for its age before its first transaction."""
    assert owned().deadline_ms == 1_000 + TIMEOUT
    again = ok(rules.init(committed(), "b", TIMEOUT, 500_000))
    assert again.deadline_ms == 500_000 + TIMEOUT


# -- beginning ------------------------------------------------------------------------------------


def test_the_owners_epoch_rises_with_every_transaction():
    again = ok(rules.begin(committed(), "a", 5, Allotted(6, 71), 2_000))
    assert (again.producer_id, again.epoch, again.number) == (70, 1, 6)
    assert (again.branches, again.taken) == ((), ())


def test_after_the_last_epoch_comes_a_new_producer_id():
    found = replace(committed(), epoch=EPOCH_MAX)
    again = ok(rules.begin(found, "a", 5, Allotted(6, 71), 2_000))
    assert (again.producer_id, again.epoch) == (71, 0)


def test_a_repeated_begin_gets_the_same_answer():
    found = opened()
    assert ok(rules.begin(found, "a", -1, Allotted(6, 71), 9_000)) == found


def test_a_delayed_begin_of_an_earlier_transaction_is_refused():
    assert denied(rules.begin(committed(), "a", -1, Allotted(6, 71), 9_000)) is Denial.INVALID
    third = ok(rules.begin(committed(), "a", 5, Allotted(6, 71), 2_000))
    done = ok(rules.finish(ok(rules.abort(third, "a", 6)), 6))
    assert denied(rules.begin(done, "a", 5, Allotted(7, 72), 9_000)) is Denial.INVALID


def test_a_second_transaction_inside_one_is_denied():
    assert denied(rules.begin(opened(), "a", 5, Allotted(6, 71), 9_000)) is Denial.INVALID


def test_an_id_without_an_owner_is_unknown():
    nobody = Transaction("x")
    assert denied(rules.begin(nobody, "a", -1, Allotted(6, 71), 0)) is Denial.UNKNOWN
    assert denied(rules.commit(nobody, "a", 1, [])) is Denial.UNKNOWN


@pytest.mark.parametrize("cause", ["expired", "killed"])
def test_an_owner_that_missed_the_answer_to_begin_can_begin_again(cause):
    """The answer to begin was lost, and the transaction aborted before the retry."""
    first = ok(rules.begin(aborted(cause), "a", -1, Allotted(6, 71), 2_000))
    assert (first.number, first.epoch) == (6, 1)
    late = ok(rules.expire(first, 6, first.deadline_ms))
    done = ok(rules.finish(late, 6))
    assert ok(rules.begin(done, "a", -1, Allotted(7, 72), 2_000)).number == 7
    assert denied(rules.begin(aborted("asked"), "a", -1, Allotted(6, 71), 2_000)) is Denial.INVALID


# -- fencing --------------------------------------------------------------------------------------


@pytest.mark.rule(
    "a new owner of a transactional id fences the old one", "consistency/transactions/events.py"
)
def test_a_new_instance_fences_the_old_and_aborts_its_transaction_once():
    taken = ok(rules.init(joined(), "b", TIMEOUT, 1_000))
    assert (taken.state, taken.cause, taken.instance) == (State.ABORTING, Cause.FENCED, "b")
    for call in (
        lambda found: rules.commit(found, "a", 5, [70]),
        lambda found: rules.abort(found, "a", 5),
        lambda found: rules.begin(found, "a", 5, Allotted(6, 71), 0),
        lambda found: rules.renew(found, "a", 5, 0),
        lambda found: rules.init(found, "a", TIMEOUT, 1_000),
    ):
        assert denied(call(taken)) is Denial.FENCED
        assert denied(call(ok(rules.finish(taken, 5)))) is Denial.FENCED
    assert denied(rules.join(taken, 5, 70, 0)) is Denial.FENCED
    assert ok(rules.init(taken, "b", TIMEOUT, 1_000)) == taken


def test_writes_of_a_displaced_owner_are_fenced_whatever_its_successor_did():
    """The numbers of a transaction show whose it was, long after its record was replaced."""
    ends = [
        ok(rules.finish(ok(rules.commit(opened(), "a", 5, [70])), 5)),
        ok(rules.finish(ok(rules.expire(opened(), 5, opened().deadline_ms)), 5)),
        ok(rules.finish(ok(rules.init(opened(), "b", TIMEOUT, 2_000)), 5)),
    ]
    for end in ends:
        taken = ok(rules.init(end, "b", TIMEOUT, 2_000))
        later = ok(rules.begin(taken, "b", -1, Allotted(6, 71), 0))
        done = ok(rules.finish(ok(rules.commit(later, "b", 6, [70])), 6))
        latest = ok(rules.begin(done, "b", 6, Allotted(7, 72), 0))
        for found in (taken, later, done, latest):
            assert denied(rules.join(found, 5, 70, 0)) is Denial.FENCED
        assert denied(rules.join(latest, 6, 71, 0)) is Denial.OVER


def test_taking_over_a_decided_transaction_waits_until_it_is_finished():
    committing = ok(rules.commit(joined(), "a", 5, [70]))
    assert denied(rules.init(committing, "b", TIMEOUT, 1_000)) is Denial.PENDING
    assert (
        ok(rules.init(ok(rules.finish(committing, 5)), "b", TIMEOUT, 1_000)).state
        is State.COMMITTED
    )


# -- deciding -------------------------------------------------------------------------------------


def test_commit_after_commit_is_fine_and_abort_after_it_is_refused():
    for found in (ok(rules.commit(joined(), "a", 5, [70])), committed()):
        assert ok(rules.commit(found, "a", 5, [70])) == found
        assert denied(rules.abort(found, "a", 5)) is Denial.INVALID
        assert denied(rules.kill(found)) is Denial.INVALID
        assert denied(rules.expire(found, 5, found.deadline_ms)) is Denial.INVALID


def test_abort_after_abort_is_fine_and_commit_after_it_is_refused():
    for found in (ok(rules.abort(joined(), "a", 5)), aborted()):
        assert ok(rules.abort(found, "a", 5)) == found
        assert denied(rules.commit(found, "a", 5, [70])) is Denial.INVALID


def test_a_repeated_commit_that_takes_other_branches_is_refused():
    assert denied(rules.commit(committed(), "a", 5, [])) is Denial.INVALID


def test_a_repeated_call_gets_the_same_answer_after_a_takeover_too():
    taken = ok(rules.init(committed(), "b", TIMEOUT, 1_000))
    assert ok(rules.commit(taken, "a", 5, [70])) == taken
    assert denied(rules.commit(taken, "a", 5, [])) is Denial.FENCED
    again = ok(rules.init(aborted(), "b", TIMEOUT, 1_000))
    assert ok(rules.abort(again, "a", 5)) == again
    later = ok(rules.begin(taken, "b", -1, Allotted(6, 71), 2_000))
    assert denied(rules.commit(later, "a", 5, [70])) is Denial.FENCED


def test_a_commit_of_an_unknown_transaction_is_refused():
    assert denied(rules.commit(joined(), "a", 6, [70])) is Denial.UNKNOWN
    assert denied(rules.abort(joined(), "a", 6)) is Denial.UNKNOWN


def test_a_delayed_request_has_no_effect_on_a_later_transaction():
    later = ok(rules.begin(committed(), "a", 5, Allotted(6, 71), 2_000))
    assert denied(rules.commit(later, "a", 5, [70])) is Denial.OVER
    assert denied(rules.abort(later, "a", 5)) is Denial.OVER
    assert denied(rules.join(later, 5, 70, 0)) is Denial.OVER
    assert denied(rules.renew(later, "a", 5, 0)) is Denial.OVER
    assert denied(rules.finish(later, 5)) is Denial.OVER


def test_a_branch_that_is_not_of_this_transaction_is_refused():
    assert denied(rules.commit(joined(), "a", 5, [70, 99])) is Denial.FOREIGN
    assert denied(rules.join(opened(), 5, 99, 0)) is Denial.FOREIGN
    assert denied(rules.join(opened(), 5, 70, 1)) is Denial.FOREIGN


def test_no_partition_joins_after_the_decision():
    committing = ok(rules.commit(joined(), "a", 5, [70]))
    assert denied(rules.join(committing, 5, 70, 0)) is Denial.INVALID


# -- time and operators ---------------------------------------------------------------------------


def test_an_expired_transaction_is_aborted_and_its_owner_is_refused():
    found = joined()
    alive = ok(rules.renew(found, "a", 5, found.deadline_ms))
    assert denied(rules.expire(alive, 5, found.deadline_ms)) is Denial.INVALID
    assert denied(rules.expire(found, 4, found.deadline_ms)) is Denial.INVALID
    late = ok(rules.expire(found, 5, found.deadline_ms))
    assert (late.state, late.cause) == (State.ABORTING, Cause.EXPIRED)
    assert denied(rules.commit(late, "a", 5, [70])) is Denial.ABORTED
    assert denied(rules.join(late, 5, 70, 0)) is Denial.ABORTED
    assert denied(rules.begin(late, "a", 5, Allotted(6, 71), 0)) is Denial.PENDING
    assert ok(rules.begin(ok(rules.finish(late, 5)), "a", 5, Allotted(6, 71), 0)).epoch == 1


def test_a_renewal_moves_the_deadline():
    found = ok(rules.renew(joined(), "a", 5, 50_000))
    assert found.deadline_ms == 50_000 + TIMEOUT


def test_a_renewal_changes_the_deadline_after_the_wall_clock_was_set_back():
    """An observer of the timeout sees another deadline after each renewal."""
    found = joined()
    for now in (1_000, 1_000, 1_000 - 1):
        alive = ok(rules.renew(found, "a", 5, now))
        assert alive.deadline_ms != found.deadline_ms
        found = alive


def test_a_number_that_does_not_rise_is_an_error():
    with pytest.raises(ValueError, match="numbers rise"):
        rules.begin(committed(), "a", 5, Allotted(5, 71), 2_000)


# -- positions that a commit moves ----------------------------------------------------------------

MOVE = PositionOf("c", "t", "id", 0, 9)


def test_an_announcement_is_withdrawn_from_an_open_transaction_only():
    announced = ok(rules.announce(joined(), "a", 5, [MOVE]))
    assert (announced.state, announced.positions) == (State.OPEN, (MOVE,))
    assert ok(rules.withdraw(announced, 5, "another")) == announced
    assert ok(rules.withdraw(announced, 5, "c")).positions == ()
    decided = ok(rules.commit(announced, "a", 5, [70], positions=[MOVE]))
    assert denied(rules.withdraw(decided, 5, "c")) is Denial.INVALID
    assert denied(rules.announce(decided, "a", 5, [MOVE])) is Denial.INVALID
    assert denied(rules.announce(joined(), "b", 5, [MOVE])) is Denial.FENCED
    assert denied(rules.withdraw(announced, 4, "c")) is Denial.OVER


def test_an_operator_ends_an_open_transaction():
    assert denied(rules.commit(aborted("killed"), "a", 5, [70])) is Denial.ABORTED
    assert denied(rules.kill(aborted())) is Denial.INVALID


def test_a_repeated_kill_does_not_abort_the_next_transaction():
    killed = aborted("killed")
    assert ok(rules.kill(killed, 5)) == killed
    later = ok(rules.begin(killed, "a", 5, Allotted(6, 71), 2_000))
    assert denied(rules.kill(later, 5)) is Denial.OVER
    assert ok(rules.kill(later, 6)).state is State.ABORTING


# -- bounds ---------------------------------------------------------------------------------------


def test_the_fenced_instances_that_are_remembered_are_bounded():
    found = owned("0")
    for run in range(1, 3 * FENCED_KEPT):
        found = ok(rules.init(found, str(run), TIMEOUT, 1_000))
    assert len(found.fenced) == FENCED_KEPT
    assert found.fenced[-1] == str(3 * FENCED_KEPT - 2)


# -- the table ------------------------------------------------------------------------------------

CALLS = {
    Event.INIT: lambda found: rules.init(found, "b", TIMEOUT, 1_000),
    Event.BEGIN: lambda found: rules.begin(found, "a", found.number, Allotted(90, 91), 0),
    Event.JOIN: lambda found: rules.join(found, 5, 70, 0),
    Event.RENEW: lambda found: rules.renew(found, "a", 5, 77),
    Event.COMMIT: lambda found: rules.commit(found, "a", 5, [70]),
    Event.ABORT: lambda found: rules.abort(found, "a", 5),
    Event.ANNOUNCE: lambda found: rules.announce(found, "a", 5, [MOVE]),
    Event.WITHDRAW: lambda found: rules.withdraw(found, 5, "c"),
    Event.EXPIRE: lambda found: rules.expire(found, 5, found.deadline_ms),
    Event.KILL: rules.kill,
    Event.FINISH: lambda found: rules.finish(found, 5),
}
STATES = {
    State.EMPTY: owned,
    State.OPEN: joined,
    State.COMMITTING: lambda: ok(rules.commit(joined(), "a", 5, [70])),
    State.ABORTING: lambda: ok(rules.abort(joined(), "a", 5)),
    State.COMMITTED: committed,
    State.ABORTED: aborted,
}


@pytest.mark.rule("the transitions of a transaction", "consistency/transactions/transactions.py")
@pytest.mark.parametrize("event", CALLS)
@pytest.mark.parametrize("state", STATES)
def test_only_the_transitions_of_the_table_are_possible(state, event):
    before = STATES[state]()
    assert before.state is state
    after = CALLS[event](before)
    goal = TABLE.get((state, event))
    if goal is None:
        assert isinstance(after, Denied)
    else:
        assert ok(after).state is goal


def test_a_decision_is_never_replaced_by_its_opposite():
    for (state, event), goal in TABLE.items():
        if state in COMMITS and event is not Event.BEGIN:
            assert goal in COMMITS
        if state in ABORTS and event is not Event.BEGIN:
            assert goal in ABORTS
    assert {State.COMMITTING, State.ABORTING} == DECIDED


# -- a reserved number ----------------------------------------------------------------------------


def test_the_first_event_of_a_reserved_number_begins_its_transaction():
    begun = started(reserved())
    assert (begun.state, begun.number, begun.after, begun.reserved) == (State.OPEN, 6, 5, -1)
    assert (begun.producer_id, begun.epoch) == (70, 1)
    assert (begun.began_ms, begun.deadline_ms) == (2_000, 2_000 + TIMEOUT)
    assert ok(rules.join(begun, 6, 70, 1)) == begun
    assert started(begun) == begun


def test_it_equals_a_transaction_that_was_begun_by_a_call():
    asked = ok(rules.begin(reserved(), "a", 5, Allotted(6, -1, "here"), 2_000))
    assert started(reserved()) == asked


@pytest.mark.parametrize("number", [-1, 5, 7])
def test_no_other_number_begins_a_transaction(number: int):
    assert started(reserved(), number) == reserved()
    assert started(committed(), number) == committed()


def test_a_decision_that_is_not_finished_on_record_does_not_delay_the_next_transaction():
    """The number is in the answer to the decision, which comes after the finish."""
    decided = rules.reserve(ok(rules.commit(joined(), "a", 5, [70])), 6)
    assert started(decided) == started(reserved())


def test_positions_are_never_passed_over():
    move = PositionOf("c", "t", "id", 0, 3)
    decided = rules.reserve(ok(rules.commit(joined(), "a", 5, [70], None, [move])), 6)
    assert started(decided) == decided


def test_positions_of_an_abort_do_not_delay_the_next_transaction():
    """A commit had announced them, and was refused."""
    announced = ok(rules.announce(joined(), "a", 5, [PositionOf("c", "t", "id", 0, 3)]))
    decided = rules.reserve(ok(rules.abort(announced, "a", 5)), 6)
    begun = started(decided)
    assert (begun.state, begun.number, begun.positions) == (State.OPEN, 6, ())


def test_a_displaced_owner_cannot_use_its_reserved_number():
    taken = ok(rules.init(reserved(), "b", TIMEOUT, 2_000))
    assert started(taken) == taken
    assert denied(rules.join(taken, 6, 70, 1)) is Denial.FENCED
    later = ok(rules.begin(taken, "b", -1, Allotted(7, 71), 3_000))
    assert denied(rules.join(later, 6, 70, 1)) is Denial.FENCED


def test_a_reserved_number_is_above_the_present_one():
    with pytest.raises(ValueError, match="numbers rise"):
        rules.reserve(committed(), 5)


class TransactionMachine(RuleBasedStateMachine):
    """Producers, runs of a sink, operators and finishers send any events, at any time."""

    @initialize()
    def start(self):
        self.record = Transaction("x")
        self.fates: dict[int, State] = {}
        self.batches: list[int] = []
        self.epochs: list[tuple[int, int]] = []
        self.now = 0
        self.numbers = 0

    def fresh(self) -> Allotted:
        self.numbers += 1
        return Allotted(self.numbers, 1_000 + self.numbers)

    def take(self, outcome: Outcome) -> None:
        if isinstance(outcome, Denied):
            assert outcome.transaction == self.record
            return
        before, self.record = self.record, outcome
        self.now += 1
        assert outcome.number >= before.number
        if outcome.number > before.number:
            assert before.state not in (State.OPEN, *DECIDED)
            if outcome.producer_id >= 0 and not outcome.branches:
                mine = (outcome.producer_id, outcome.epoch)
                assert mine not in self.epochs
                self.epochs.append(mine)
        if outcome.committed_batch != before.committed_batch:
            assert outcome.committed_batch > before.committed_batch
            self.batches.append(outcome.committed_batch)

    instances = st.sampled_from(["a", "b", "c", "d"])
    near = st.integers(-1, 1)

    @rule(instance=instances)
    def init(self, instance):
        self.take(rules.init(self.record, instance, 10, 1_000))

    @rule(instance=instances, first=st.booleans(), off=near)
    def begin(self, instance, first, off):
        after = -1 if first else max(-1, self.record.number + off)
        self.take(rules.begin(self.record, instance, after, self.fresh(), self.now))

    runs = st.sampled_from(["driver 1", "driver 2"])

    @rule(
        instance=instances,
        query=st.sampled_from(["q", "q", "q", "r"]),
        batch=st.integers(0, 4),
        run=runs,
    )
    def branch(self, instance, query, batch, run):
        claim = Claim(query, instance, batch, 10, run, self.now)
        self.take(sinks.branch(self.record, claim, self.fresh(), self.now))

    @rule(instance=instances, batch=st.integers(0, 4))
    def settle(self, instance, batch):
        self.take(sinks.settle(self.record, Claim("q", instance, batch, 10)))

    @rule(instance=instances, off=near, first=st.booleans())
    def drop(self, instance, off, first):
        found = self.record
        producer = (found.branches or (0,))[0 if first else -1]
        self.take(sinks.drop(found, instance, found.number + off, producer))

    @rule(run=runs, batch=st.integers(0, 4))
    def stop(self, run, batch):
        self.take(sinks.stop(self.record, Stop(run, self.now, batch)))

    def decide(self, outcome: Outcome) -> None:
        """Reserve the next number, as a broker does."""
        decided = isinstance(outcome, Transaction) and self.record.state is State.OPEN
        if decided and outcome.batch < 0 and not rules.needs_producer_id(outcome):
            outcome = rules.reserve(outcome, self.fresh().number)
        self.take(outcome)

    @rule()
    def begin_reserved(self):
        found = self.record
        if found.state not in DECIDED:  # the answer with the number comes after FINISH
            self.take(rules.begun_if_reserved(found, found.reserved, "", self.now))

    @rule(off=near, own=st.booleans())
    def join(self, off, own):
        found = self.record
        producer = found.producer_id if own else (found.branches or (0,))[-1]
        epoch = found.epoch if own else 0
        self.take(rules.join(found, found.number + off, producer, epoch))

    @rule(instance=instances, off=near, every=st.booleans())
    def commit(self, instance, off, every):
        found = self.record
        owner = [] if found.branches else [found.producer_id]
        taken = [*owner, *(found.branches if every else found.branches[:1])]
        batch = found.batch if found.batch >= 0 else None
        moves = [PositionOf("c", "t", "id", 0, self.now)]
        self.decide(rules.commit(found, instance, found.number + off, taken, batch, moves))

    @rule(instance=instances, off=near)
    def abort(self, instance, off):
        self.decide(rules.abort(self.record, instance, self.record.number + off))

    @rule(late=st.booleans())
    def expire(self, late):
        found = self.record
        self.take(rules.expire(found, found.number, found.deadline_ms - (not late)))

    @rule()
    def kill(self):
        self.take(rules.kill(self.record))

    @rule(off=near)
    def finish(self, off):
        self.take(rules.finish(self.record, self.record.number + off))

    @invariant()
    def a_fate_never_changes(self):
        found = self.record
        fate = State.COMMITTED if found.state in COMMITS else State.ABORTED
        if found.state in (*COMMITS, *ABORTS) and found.number >= 0:
            assert self.fates.setdefault(found.number, fate) is fate

    @invariant()
    def an_open_transaction_is_not_fenced(self):
        found = self.record
        assert found.state is not State.OPEN or found.number > found.displaced

    @invariant()
    def a_reserved_number_is_above_the_present_one(self):
        found = self.record
        assert found.reserved == -1 or found.number < found.reserved
        assert found.reserved == -1 or found.state is not State.OPEN

    @invariant()
    def a_batch_is_committed_once(self):
        assert len(set(self.batches)) == len(self.batches)

    @invariant()
    def what_is_taken_was_a_part(self):
        found = self.record
        assert set(found.taken) <= {found.producer_id, *found.branches}
        assert not set(found.taken) & set(found.dropped)


TransactionMachine.TestCase.settings = settings(max_examples=examples(300), stateful_step_count=40)
test_transactions_under_any_order_of_events = TransactionMachine.TestCase
