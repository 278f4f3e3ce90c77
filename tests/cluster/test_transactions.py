"""Transactions as records: on every store, and changed from many sides at once."""

from __future__ import annotations

import json
import threading
from dataclasses import replace

from spark_stream.cluster.transactions import TransactionRecords, decode, encode
from spark_stream.consistency import transactions as rules
from spark_stream.consistency.transactions import (
    Allotted,
    Cause,
    Denial,
    Denied,
    Joined,
    PositionOf,
    State,
    Transaction,
)

FULL = Transaction(
    "loader-1",
    state=State.COMMITTING,
    number=7,
    producer_id=3,
    epoch=2,
    instance="i",
    fenced=("g", "h"),
    unused=False,
    after=6,
    cause=Cause.KILLED,
    query="q",
    batch=4,
    committed_batch=4,
    branches=(8, 9),
    taken=(8,),
    partitions=(Joined("t", "id", 0), Joined("ü", "id2", 11)),
    positions=(PositionOf("c", "t", "id", 0, 42),),
    timeout_ms=1,
    began_ms=2,
    deadline_ms=3,
)


def test_a_record_comes_back_as_it_was(store):
    records = TransactionRecords(store)
    assert records.get("loader-1") is None
    assert records.change("loader-1", lambda _: FULL) == FULL
    assert records.get("loader-1") == FULL
    assert records.all() == [FULL]


def test_the_codec_keeps_a_transaction():
    assert decode(json.loads(json.dumps(encode(FULL)))) == FULL


def test_a_denied_event_writes_nothing(store):
    records = TransactionRecords(store)
    outcome = records.change("x", lambda found: Denied(Denial.UNKNOWN, found))
    assert isinstance(outcome, Denied)
    assert records.all() == []


def test_of_two_that_decide_at_once_one_decides(another):
    """A commit and an abort, each of a broker of its own: the loser learns what was decided."""
    stores = [TransactionRecords(another()), TransactionRecords(another())]
    for round_ in range(30):
        name = f"x{round_}"
        stores[0].change(name, lambda found: rules.init(found, "a", 1_000, 0))
        stores[0].change(name, lambda found: rules.begin(found, "a", -1, Allotted(1, 2), 0))
        gate = threading.Barrier(2)
        outcomes: dict[str, object] = {}

        def decide(which: str, records: TransactionRecords, name=name, gate=gate, into=outcomes):
            gate.wait()
            rule = {
                "commit": lambda it: rules.commit(it, "a", 1, [2]),
                "abort": lambda it: rules.abort(it, "a", 1),
            }[which]
            into[which] = records.change(name, rule)

        threads = [
            threading.Thread(target=decide, args=each)
            for each in zip(("commit", "abort"), stores, strict=True)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        found = stores[0].get(name)
        assert found is not None
        committed = found.state is State.COMMITTING
        assert isinstance(outcomes["commit"], Transaction) is committed
        assert isinstance(outcomes["abort"], Transaction) is not committed


def test_joins_from_many_sides_are_all_on_record(another):
    stores = [TransactionRecords(another()) for _ in range(4)]
    stores[0].change("x", lambda found: rules.init(found, "a", 1_000, 0))
    stores[0].change("x", lambda found: rules.begin(found, "a", -1, Allotted(1, 2), 0))

    def join(which: int) -> None:
        for number in range(10):
            at = Joined("t", "id", 10 * which + number)
            stores[which].change("x", lambda found, at=at: rules.join(found, 1, 2, 0, at))

    threads = [threading.Thread(target=join, args=(which,)) for which in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    found = stores[0].get("x")
    assert found is not None
    assert sorted(each.partition for each in found.partitions) == list(range(40))


def test_a_record_is_forgotten_only_while_it_is_the_same(store):
    records = TransactionRecords(store)
    records.change("x", lambda _: replace(FULL, transactional_id="x"))
    records.forget(replace(FULL, transactional_id="x", number=6))
    assert len(records.all()) == 1
    records.forget(replace(FULL, transactional_id="x"))
    assert records.all() == []
