"""Records of transactions, their index, and unique numbers, on every store."""

from __future__ import annotations

import json
import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from spark_stream.cluster.transactions import (
    PREFIX,
    Numbers,
    TransactionIndex,
    TransactionKey,
    decode,
    encode,
)
from spark_stream.consistency.transactions.transactions import (
    Cause,
    PositionOf,
    State,
    Transaction,
)
from tests.simulation.store import MemoryRecords, MemoryStore

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
    positions=(PositionOf("c", "t", "id", 0, 42),),
    timeout_ms=1,
    began_ms=2,
    deadline_ms=3,
)


def test_a_record_survives_encoding(store):
    assert store.put("transactions/loader-1", encode(FULL), 0)
    assert decode(store.get("transactions/loader-1").value) == FULL


def test_the_codec_keeps_a_transaction():
    assert decode(json.loads(json.dumps(encode(FULL)))) == FULL


def test_a_record_is_found_by_its_present_content():
    store = MemoryStore(MemoryRecords())
    index = TransactionIndex(store)
    mine = Transaction("s", query="q", run="r", state=State.OPEN)
    version = store.put(PREFIX + "s", encode(mine), 0)
    assert version is not None
    for number in range(50):
        store.put(f"{PREFIX}other-{number}", encode(Transaction(f"other-{number}", query="o")), 0)
    for by, value in (
        (TransactionKey.QUERY, "q"),
        (TransactionKey.RUN, "r"),
        (TransactionKey.UNDER_WAY, ""),
    ):
        assert index.find(by, value) == [mine]
    over = replace(mine, state=State.COMMITTED, run="later")
    version = store.put(PREFIX + "s", encode(over), version)
    assert index.find(TransactionKey.RUN, "r") == index.find(TransactionKey.UNDER_WAY, "") == []
    assert index.find(TransactionKey.RUN, "later") == [over]
    assert version is not None
    assert store.delete(PREFIX + "s", version)
    assert index.find(TransactionKey.QUERY, "q") == []
    assert len(index.find(TransactionKey.QUERY, "o")) == 50


def test_a_look_up_reads_only_the_changes():
    records = MemoryRecords()
    store, read = MemoryStore(records), []
    original = store.changes
    store.changes = lambda since, prefixes, **asked: (  # type: ignore[method-assign]
        found := original(since, prefixes, **asked),
        read.append(len(found.changed)),
    )[0]
    for number in range(1_000):
        store.put(f"{PREFIX}{number}", encode(Transaction(str(number), query="o")), 0)
    index = TransactionIndex(store)
    index.find(TransactionKey.RUN, "r")
    store.put(PREFIX + "s", encode(Transaction("s", run="r")), 0)
    assert len(index.find(TransactionKey.RUN, "r")) == 1
    index.find(TransactionKey.QUERY, "none")
    assert read == [1_000, 1, 0]


def test_records_deleted_while_deletions_were_dropped_are_not_found():
    records = MemoryRecords()
    store = MemoryStore(records)
    index = TransactionIndex(store)
    version = store.put(PREFIX + "s", encode(Transaction("s", query="q")), 0)
    assert version is not None
    assert len(index.find(TransactionKey.QUERY, "q")) == 1
    store.delete(PREFIX + "s", version)
    records.forget_deleted()
    store.put(PREFIX + "t", encode(Transaction("t", query="o")), 0)
    assert index.find(TransactionKey.QUERY, "q") == []


@pytest.mark.rule("producer ids and transaction numbers are unique", "cluster/transactions.py")
def test_no_number_is_allotted_twice(another):
    makers = [Numbers(another(), "numbers/x", block=7) for _ in range(3)]
    taken: list[int] = []

    def take(maker: Numbers) -> None:
        taken.extend(maker.take() for _ in range(50))

    threads = [threading.Thread(target=take, args=(maker,)) for maker in makers for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(set(taken)) == len(taken) == 300


def test_numbers_continue_after_a_restart(another):
    first = [Numbers(another(), "n").take() for _ in range(3)]
    assert first == sorted(set(first))


def test_a_number_above_another_brokers_skips_the_rest_of_the_block(another):
    one, two = (Numbers(another(), "n", block=10) for _ in range(2))
    assert [one.take(), two.take()] == [0, 10]
    assert one.take(above=10) > 10
    assert one.take(above=3) > 11, "the lower numbers of its block are given up"
    assert two.take() == 11


def test_a_number_far_above_all_blocks_moves_later_blocks(another):
    one, two = (Numbers(another(), "n", block=10) for _ in range(2))
    assert one.take(above=1_000_000) == 1_000_001
    assert two.take() == 1_000_011


def test_pass_over_moves_a_stored_counter_that_is_behind(another):
    one = Numbers(another(), "n", block=10)
    assert one.take() == 0
    assert not one.pass_over(9), "the store knows of the whole block"
    assert one.take() == 1
    assert one.pass_over(5_000)
    assert not one.pass_over(5_000)
    assert one.take() == 5_001
    assert Numbers(another(), "n", block=10).take() > 5_001


def test_block_begins_above_the_numbers_in_the_logs(another):
    used = [-1]
    one = Numbers(another(), "n", block=2, used=lambda: used[0])
    assert one.take() == 0
    used[0] = 7_000  # the store was replaced by an older one
    assert [one.take(), one.take(), one.take()] == [1, 7_001, 7_002]
    assert Numbers(another(), "n", block=2).take() == 7_003


@given(
    st.integers(1, 5),
    st.lists(st.tuples(st.integers(0, 2), st.integers(0, 3), st.booleans()), max_size=60),
)
def test_the_numbers_of_one_id_rise_over_all_brokers(block, draws):
    """Three brokers allot numbers to four ids, and restart now and then. No number comes twice."""
    records = MemoryRecords()
    brokers = [Numbers(MemoryStore(records), "n", block) for _ in range(3)]
    last = dict.fromkeys(range(4), -1)
    taken = set()
    for broker, name, restarts in draws:
        if restarts:
            brokers[broker] = Numbers(MemoryStore(records), "n", block)
        number = brokers[broker].take(above=last[name])
        assert number > last[name]
        assert number not in taken
        taken.add(number)
        last[name] = number
