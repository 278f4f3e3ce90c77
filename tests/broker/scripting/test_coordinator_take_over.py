"""The transactions that a broker sweeps: its own, and those of brokers whose lease expired."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from spark_stream.consistency.partition.producers import Stamp
from spark_stream.consistency.transactions import events as rules
from spark_stream.consistency.transactions.transactions import Joined, State, Transaction
from spark_stream.scripts.steps import PutRecord, Script
from spark_stream.scripts.transactions import records
from spark_stream.wire.transaction_messages import BeginTransaction, InitTransactions
from tests.broker.local_broker import LEASE_S, Surroundings, to_create
from tests.broker.stamped import Appender, Owner, bounds
from tests.brokers import brokers_on
from tests.clocks import FakeClock
from tests.support import NUMBERS, eventually, numbers

TIMEOUT_S = 60.0
STEP_S = 2.0  # well below a lease's duration


class OneBroker:
    """A broker that sweeps transactions when the test calls it."""

    def __init__(self, around: Surroundings, name: str) -> None:
        self._broker = around.start(name)
        self.host, self.topics = self._broker.host, self._broker.topics
        self.renew = self._broker.lease_keeper.renew
        self.transactions = self._broker.transactions


class TwoBrokers:
    """Brokers A and B on one store, by one clock. B leads topic ``t``."""

    def __init__(self, path: Path) -> None:
        self.clock = FakeClock()
        self.around = Surroundings(path, self.clock)
        self.a, self.b = OneBroker(self.around, "a"), OneBroker(self.around, "b")
        self.b.topics.create(to_create("t", 1, 1, NUMBERS, {}, [["b"]]))
        self.partition = self.b.host.topic("t").partition(0)

    def begin_at_a(self, name: str = "x") -> Transaction:
        """A transaction of A that has a record in B's partition."""
        asked = self.a.transactions
        me = {"transactional_id": name, "instance": "me"}
        taken = InitTransactions.of(**me, timeout_ms=int(TIMEOUT_S * 1000))
        asked.run(asked.decisions.take_over(taken))
        begun = asked.run(asked.decisions.begin(BeginTransaction.of(**me)))
        number, producer, epoch = begun.number, begun.producer_id, begun.epoch
        at = self.partition
        pending = at.transactions.open_join(number, producer)
        assert pending is not None
        place = Joined(at.topic, at.topic_id, at.number)
        self.b.transactions.run(
            self.b.transactions.decisions.join(name, number, producer, epoch, place)
        )
        at.transactions.close_join(pending, on_record=True)
        at.append(numbers(0, 1), Stamp(producer, epoch, 0, number))
        return begun

    def pass_time(self, seconds: float, *, a_lives: bool) -> None:
        """Time passes in small steps, and B sweeps after each. A renews its lease while alive."""
        for _ in range(int(seconds / STEP_S)):
            self.clock.pass_us(int(STEP_S * 1e6))
            self.b.renew()
            if a_lives:
                self.a.renew()
            self.b.transactions.run(self.b.transactions.sweeping())

    def state(self, name: str = "x") -> State:
        found = self.b.transactions.run(records.read(name))
        assert found is not None
        return found.state

    def stable(self) -> int:
        return int(self.partition.bounds().last_stable_offset)


@pytest.fixture
def brokers(tmp_path: Path) -> Iterator[TwoBrokers]:
    found = TwoBrokers(tmp_path)
    yield found
    found.around.close()


@pytest.mark.rule(
    "the coordinator of a transaction, and its successor",
    "broker/scripting/coordinator.py",
    "cluster/stores/leases.py",
)
def test_a_live_coordinator_expires_its_open_transactions(brokers):
    brokers.begin_at_a()
    brokers.pass_time(3 * TIMEOUT_S, a_lives=True)
    assert (brokers.state(), brokers.stable()) == (State.OPEN, 0)


@pytest.mark.rule(
    "the coordinator of a transaction, and its successor",
    "broker/scripting/coordinator.py",
    "cluster/stores/leases.py",
)
def test_another_broker_expires_transactions_of_a_dead_coordinator(brokers):
    """The timeout begins when the lease expires, as after a restart of the dead broker."""
    brokers.begin_at_a()
    brokers.pass_time(TIMEOUT_S, a_lives=True)
    brokers.pass_time(LEASE_S + TIMEOUT_S - STEP_S, a_lives=False)
    assert (brokers.state(), brokers.stable()) == (State.OPEN, 0)
    brokers.pass_time(3 * STEP_S, a_lives=False)
    assert (brokers.state(), brokers.stable()) == (State.ABORTED, 1)


def renew_at_a_change(script: Script[None], renew: Callable[[], None]) -> Script[None]:
    """The same script, with a renewal of the lease right before a record is changed."""
    step = next(script)
    while True:
        if isinstance(step, PutRecord):
            renew()
        answer = yield step
        try:
            step = script.send(answer)
        except StopIteration:
            return


def test_a_restarted_broker_keeps_transactions_that_were_not_swept(brokers):
    for name in ("x", "y"):
        brokers.begin_at_a(name)
    brokers.pass_time(LEASE_S + TIMEOUT_S - STEP_S, a_lives=False)
    brokers.clock.pass_us(int(3 * STEP_S * 1e6))
    brokers.b.transactions.run(
        renew_at_a_change(brokers.b.transactions.sweeping(), brokers.a.renew)
    )
    assert (brokers.state("x"), brokers.state("y")) == (State.ABORTED, State.OPEN)


def test_another_broker_finishes_a_decided_transaction_after_the_lease(brokers):
    begun = brokers.begin_at_a()
    taken = [begun.producer_id]
    commit = records.as_judge(lambda found: rules.commit(found, "me", begun.number, taken))
    brokers.a.transactions.run(records.change("x", commit))
    brokers.pass_time(3 * LEASE_S, a_lives=True)
    assert (brokers.state(), brokers.stable()) == (State.COMMITTING, 0)
    brokers.pass_time(LEASE_S - STEP_S, a_lives=False)
    assert (brokers.state(), brokers.stable()) == (State.COMMITTING, 0)
    brokers.pass_time(2 * STEP_S, a_lives=False)
    assert (brokers.state(), brokers.stable()) == (State.COMMITTED, 1)


def test_a_lost_marker_of_another_brokers_transaction_is_restored(
    brokers,
):
    """A marks, remembers that, and puts it on record only with its next transaction."""
    begun = brokers.begin_at_a()
    commit = records.as_judge(
        lambda found: rules.commit(found, "me", begun.number, [begun.producer_id])
    )
    decided = brokers.a.transactions.run(records.change("x", commit))
    brokers.b.transactions.run(
        brokers.b.transactions.recovering()
    )  # B starts: it lost the marker with the power
    brokers.pass_time(2 * STEP_S, a_lives=True)
    assert (brokers.state(), brokers.stable()) == (State.COMMITTING, 0)
    brokers.a.transactions.run(brokers.a.transactions.decisions.finisher.record_finish(decided))
    brokers.pass_time(2 * STEP_S, a_lives=True)
    assert (brokers.state(), brokers.stable()) == (State.COMMITTED, 1)
    assert not brokers.partition.log.has_aborted(0, 1)


def test_a_restarted_broker_sweeps_its_own_transactions_again(brokers):
    brokers.begin_at_a()
    brokers.pass_time(LEASE_S + TIMEOUT_S / 2, a_lives=False)
    brokers.a.renew()
    brokers.pass_time(2 * TIMEOUT_S, a_lives=True)
    assert (brokers.state(), brokers.stable()) == (State.OPEN, 0)


def test_another_broker_aborts_transactions_of_a_killed_process(tmp_path: Path):
    """The transaction began at A and wrote to a topic that B leads. A does not come back."""
    with brokers_on(tmp_path, t="b") as (first, second), second.channel() as channel:
        with first.channel() as asked:
            owner = Owner(asked, timeout_ms=2_000).begin()
        stream = Appender(channel, "t", owner.name)
        stream.put(1, 1, owner.producer, 0, epoch=owner.epoch, transaction=owner.number)
        stream.close()
        assert bounds(channel, "t") == (0, 1, 1)
        first.kill()
        owner.channel = channel
        eventually(lambda: owner.described()["state"] == "aborted", timeout_s=60)
        assert bounds(channel, "t") == (1, 1, 1)
