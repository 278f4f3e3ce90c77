"""What a record holds of a transaction, on every store."""

from __future__ import annotations

import json

from msgspec.structs import replace

from spark_stream.cluster.transactions import PREFIX, By, TransactionIndex, decode, encode
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


def test_a_record_comes_back_as_it_was(store):
    assert store.put("transactions/loader-1", encode(FULL), 0)
    assert decode(store.get("transactions/loader-1").value) == FULL


def test_the_codec_keeps_a_transaction():
    assert decode(json.loads(json.dumps(encode(FULL)))) == FULL


def test_a_record_is_found_by_what_is_in_it_as_it_is_now():
    store = MemoryStore(MemoryRecords())
    index = TransactionIndex(store)
    mine = Transaction("s", query="q", run="r", state=State.OPEN)
    version = store.put(PREFIX + "s", encode(mine), 0)
    assert version is not None
    for number in range(50):
        store.put(f"{PREFIX}other-{number}", encode(Transaction(f"other-{number}", query="o")), 0)
    for by, value in ((By.QUERY, "q"), (By.RUN, "r"), (By.UNDER_WAY, "")):
        assert index.find(by, value) == [mine]
    over = replace(mine, state=State.COMMITTED, run="later")
    version = store.put(PREFIX + "s", encode(over), version)
    assert index.find(By.RUN, "r") == index.find(By.UNDER_WAY, "") == []
    assert index.find(By.RUN, "later") == [over]
    assert version is not None
    assert store.delete(PREFIX + "s", version)
    assert index.find(By.QUERY, "q") == []
    assert len(index.find(By.QUERY, "o")) == 50


def test_a_look_up_reads_what_has_changed_and_no_more():
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
    index.find(By.RUN, "r")
    store.put(PREFIX + "s", encode(Transaction("s", run="r")), 0)
    assert len(index.find(By.RUN, "r")) == 1
    index.find(By.QUERY, "none")
    assert read == [1_000, 1, 0]


def test_records_that_went_while_the_store_forgot_deletions_are_gone():
    records = MemoryRecords()
    store = MemoryStore(records)
    index = TransactionIndex(store)
    version = store.put(PREFIX + "s", encode(Transaction("s", query="q")), 0)
    assert version is not None
    assert len(index.find(By.QUERY, "q")) == 1
    store.delete(PREFIX + "s", version)
    records.forget_deleted()
    store.put(PREFIX + "t", encode(Transaction("t", query="o")), 0)
    assert index.find(By.QUERY, "q") == []
