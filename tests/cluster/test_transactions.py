"""What a record holds of a transaction, on every store."""

from __future__ import annotations

import json

from spark_stream.cluster.transactions import decode, encode
from spark_stream.consistency.transactions import (
    Cause,
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
