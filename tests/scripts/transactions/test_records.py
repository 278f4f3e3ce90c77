"""Transactions' records on a real store, changed by several brokers concurrently."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from msgspec.structs import replace

from isolog.errors import InvalidTransaction, IsologError
from spark_stream.cluster.stores.sqlite import SqliteStore
from spark_stream.cluster.transactions import join_of
from spark_stream.consistency.transactions import events as rules
from spark_stream.consistency.transactions.transactions import (
    Allotted,
    Denial,
    Denied,
    Joined,
    Outcome,
    State,
    Transaction,
)
from spark_stream.scripts.steps import CatchUp, DeleteMany, Get, ListRecords, PutMany
from spark_stream.scripts.transactions.deciding import Decisions
from spark_stream.scripts.transactions.finishing import Finisher
from spark_stream.scripts.transactions.records import (
    as_judge,
    change,
    delete_joins,
    delete_unchanged,
    read,
    read_all,
    read_joins,
    read_places,
)
from tests.scripts.on_store import OnStore
from tests.scripts.world import here
from tests.simulation.store import MemoryRecords, MemoryStore

LOADER = Transaction("loader-1", state=State.COMMITTED, number=7, producer_id=3, epoch=2)


def in_memory() -> OnStore:
    return OnStore(MemoryStore(MemoryRecords()))


def begin(on: OnStore, name: str) -> None:
    on.run(change(name, as_judge(lambda found: rules.init(found, "a", 1_000, 0))))
    on.run(change(name, as_judge(lambda found: rules.begin(found, "a", -1, Allotted(1, 2), 0))))


def at_once(*acts: Callable[[], None]) -> None:
    gate = threading.Barrier(len(acts))

    def run(act: Callable[[], None]) -> None:
        gate.wait()
        act()

    threads = [threading.Thread(target=run, args=(act,)) for act in acts]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def test_a_change_stores_and_returns_the_result_of_the_rule():
    on = in_memory()
    assert on.run(read("loader-1")) is None
    assert on.run(change("loader-1", as_judge(lambda _: LOADER))) == LOADER
    assert on.run(read("loader-1")) == LOADER
    assert on.run(read_all()) == [LOADER]


def test_a_denied_event_writes_no_record():
    on = in_memory()
    denied = on.run(change("x", as_judge(lambda found: Denied(Denial.UNKNOWN, found))))
    assert isinstance(denied, Denied)
    assert on.run(read_all()) == []


def test_a_record_that_changed_between_read_and_write_is_judged_again():
    on = in_memory()
    seen: list[int] = []

    def count(found: Transaction) -> Outcome:
        seen.append(found.number)
        return replace(found, number=found.number + 1)

    late = on.start(change("x", as_judge(count)))
    late.advance()  # it has read
    on.run(change("x", as_judge(lambda found: replace(found, number=41))))
    late.end()
    assert (seen, late.result.number) == ([-1, 41], 42)
    assert on.run(read("x")) == late.result


def test_only_an_unchanged_record_is_deleted():
    on = in_memory()
    on.run(change("loader-1", as_judge(lambda _: LOADER)))
    on.run(delete_unchanged(replace(LOADER, number=6)))
    assert on.run(read_all()) == [LOADER]
    on.run(delete_unchanged(LOADER))
    assert on.run(read_all()) == []


def test_one_of_two_concurrent_decisions_wins(tmp_path: Path):
    """A commit and an abort: the loser gets the decision."""
    brokers = [OnStore(SqliteStore(tmp_path / "metadata.sqlite")) for _ in range(2)]
    for round_ in range(20):
        name = f"x{round_}"
        begin(brokers[0], name)
        outcomes: dict[str, Outcome] = {}

        def commit(name: str = name, into: dict[str, Outcome] = outcomes) -> None:
            rule = as_judge(lambda found: rules.commit(found, "a", 1, [2]))
            into["commit"] = brokers[0].run(change(name, rule))

        def abort(name: str = name, into: dict[str, Outcome] = outcomes) -> None:
            rule = as_judge(lambda found: rules.abort(found, "a", 1))
            into["abort"] = brokers[1].run(change(name, rule))

        at_once(commit, abort)
        committed = brokers[0].run(read(name)).state is State.COMMITTING
        assert isinstance(outcomes["commit"], Transaction) is committed
        assert isinstance(outcomes["abort"], Transaction) is not committed
    for each in brokers:
        each.store.close()


def test_joins_from_many_brokers_are_all_on_record(tmp_path: Path):
    brokers = [OnStore(SqliteStore(tmp_path / "metadata.sqlite")) for _ in range(4)]
    begin(brokers[0], "x")

    def join(which: int) -> None:
        for number in range(10):
            at = Joined("t", "id", 10 * which + number)
            brokers[which].run(Decisions(Finisher(), here).join("x", 1, 2, 0, at))

    at_once(*(lambda which=which: join(which) for which in range(4)))
    found = brokers[0].run(read_places(1))
    assert sorted(each.partition for each in found) == list(range(40))
    for each in brokers:
        each.store.close()


def test_the_writes_of_a_join_do_not_grow_with_earlier_joins():
    """Two thousand joins cost twice as much as a thousand, in writes and in bytes."""
    on = in_memory()
    begin(on, "x")
    on.steps.clear()
    costs = []
    for first in (0, 1_000):
        for number in range(first, first + 1_000):
            on.run(Decisions(Finisher(), here).join("x", 1, 2, 0, Joined("t", "id", number)))
        puts = [step for step in on.steps if isinstance(step, PutMany)]
        values = [json.dumps(put.value) for each in puts for put in each.puts]
        costs.append((len(puts), sum(map(len, values))))
        on.steps.clear()
    assert costs[0][0] == costs[1][0] == 1_000
    assert costs[1][1] == costs[0][1]
    assert len(on.run(read_places(1))) == 2_000


def test_partitions_that_join_together_cost_one_write_and_two_reads():
    on = in_memory()
    begin(on, "x")
    on.steps.clear()
    places = [Joined("t", "id", number) for number in range(2_000)]
    on.run(Decisions(Finisher(), here).join("x", 1, 2, 0, *places))
    assert [type(step) for step in on.steps] == [Get, PutMany, CatchUp, Get]
    assert [step.fresh for step in on.steps if isinstance(step, Get)] == [False, False]
    assert set(on.run(read_places(1))) == set(places)


def test_the_first_join_of_a_reserved_number_costs_one_write_and_one_read():
    on = in_memory()
    begin(on, "x")
    on.run(change("x", as_judge(lambda found: rules.commit(found, "a", 1, [2]))))
    on.run(change("x", as_judge(lambda found: rules.reserve(found, 7))))
    on.steps.clear()
    places = [Joined("t", "id", number) for number in range(20)]
    on.run(Decisions(Finisher(), here).join("x", 7, 2, 1, *places))
    assert [type(step) for step in on.steps] == [Get, PutMany]
    record = on.run(read("x"))
    assert (record.state, record.number, record.coordinator) == (State.OPEN, 7, "here")
    assert set(on.run(read_places(7))) == set(places)


def test_a_join_that_comes_after_the_decision_is_refused():
    """Its record may be too late for the broker that finishes the transaction."""
    on = in_memory()
    begin(on, "x")
    finisher = Finisher()
    late = on.start(Decisions(finisher, here).join("x", 1, 2, 0, Joined("t", "id", 0)))
    late.advance()  # it has checked, and the transaction was open
    on.run(change("x", as_judge(lambda found: rules.commit(found, "a", 1, [2]))))
    with pytest.raises(InvalidTransaction):
        late.end()
    assert finisher.ended == {1: "x"}  # the next sweep checks whether its record can be removed


def test_a_wrong_stamp_puts_no_join_on_record():
    on = in_memory()
    begin(on, "x")
    for name, number, producer in (("x", 2, 2), ("x", 1, 9), ("y", 1, 2)):
        with pytest.raises(IsologError):
            on.run(
                Decisions(Finisher(), here).join(name, number, producer, 0, Joined("t", "id", 0))
            )
    assert on.run(read_joins()) == []


def test_joins_are_removed_once_the_transaction_is_finished_on_record():
    on = in_memory()
    begin(on, "x")
    for number in range(3):
        on.run(Decisions(Finisher(), here).join("x", 1, 2, 0, Joined("t", "id", number)))
    ended = [(1, "x")]
    assert on.run(delete_joins(ended)) == []  # it is open: its finisher comes back to it
    on.run(change("x", as_judge(lambda found: rules.commit(found, "a", 1, [2]))))
    assert on.run(delete_joins(ended)) == ended
    assert len(on.run(read_places(1))) == 3
    on.run(change("x", as_judge(lambda found: rules.finish(found, 1))))
    assert on.run(delete_joins(ended)) == []
    assert on.run(read_joins()) == []


@pytest.mark.parametrize("count", [10, 11])
def test_joins_of_many_transactions_are_removed_with_few_requests(count: int):
    """An id with short transactions ends hundreds between two sweeps."""
    on = in_memory()
    begin(on, "x")
    for number in range(1, count + 1):
        puts = [join_of("x", number, Joined("t", "id", part)) for part in range(2)]
        on.store.put_many(puts)
    foreign, present = count + 1, count + 2
    on.store.put_many([join_of("other", foreign, Joined("t", "id", 0))])
    on.store.put_many([join_of("x", present, Joined("t", "id", 0))])
    on.run(change("x", as_judge(lambda found: replace(found, number=present))))
    on.steps.clear()
    ended = [(number, "x") for number in (*range(1, count + 1), present)]
    assert on.run(delete_joins(ended)) == []  # the present one is open
    kinds = [type(step) for step in on.steps]
    assert kinds == [Get, *[ListRecords] * (count if count == 10 else 1), DeleteMany]
    assert [each.number for each in on.run(read_joins())] == [foreign, present]
    on.run(change("x", as_judge(lambda found: replace(found, state=State.COMMITTING))))
    assert on.run(delete_joins(ended)) == [(present, "x")]
    assert [each.number for each in on.run(read_joins())] == [foreign, present]
