"""Unused ids of sinks expire, and no batch is written twice after that."""

from __future__ import annotations

import pytest
from msgspec.structs import asdict, replace

from isolog.errors import InvalidTransaction, SinkInUse, StaleBatch, UnknownTransaction
from spark_stream.consistency.transactions.sinks import BATCH_WRITES, Claim
from spark_stream.consistency.transactions.transactions import Content, State
from spark_stream.scripts.transactions import records
from spark_stream.scripts.transactions.finishing import SEEN_IDLE_S, Swept, TransactionSettings
from spark_stream.wire.transaction_messages import CommitTransaction, InitTransactions, SinkBatch
from tests.scripts.transactions.test_deciding_interleavings import A, B, watched
from tests.scripts.world import World

CONTENT = (Content("t", 3, 77, 5),)
DAY_MS = 86_400_000
CLAIM = Claim("q", "run", 7)
NEXT_RUN = replace(CLAIM, instance="next run")

SINK_EXPIRY_S = TransactionSettings().sink_expiry_seconds


def batch_of(sink: str, claim: Claim, *, renamed: bool = False) -> SinkBatch:
    return SinkBatch(transactional_id=sink, renamed=renamed, **asdict(claim))


def write_batch(world: World, sink: str = "s", claim: Claim = CLAIM) -> None:
    broker = world.brokers[A]
    found, producer = world.run(A, broker.sinks.open_branch(batch_of(sink, claim), A, 0))
    assert producer is not None
    asked = CommitTransaction(
        transactional_id=sink,
        instance=claim.instance,
        number=found.number,
        branches=(producer,),
        batch=claim.batch,
        content=CONTENT,
    )
    decided = world.run(A, broker.decisions.commit(asked))
    world.run(A, broker.finisher.record_finish(decided))


def sweep(world: World, sink: str, idle_s: float, age_ms: float) -> Swept:
    """A sweep of the sink, whose record has this age and was seen idle for so long."""
    found = world.brokers[A]
    record = world.store.transaction(sink)
    now_ms = int(record.deadline_ms - record.timeout_ms + age_ms)
    for seen_s in (0.0, idle_s):
        swept = world.run(A, found.sweeper.sweep_record(record, seen_s, now_ms))
    return swept


def expire(world: World, sink: str = "s") -> None:
    assert sweep(world, sink, SEEN_IDLE_S + 1, SINK_EXPIRY_S * 1000 + 1) is Swept.FORGOTTEN


def settle(world: World, sink: str, claim: Claim, *, renamed: bool = False) -> tuple[object, bool]:
    broker = world.brokers[A]
    found, committed = world.run(
        A, broker.sinks.settle_batch(batch_of(sink, claim, renamed=renamed))
    )
    return found.content, committed


def kept(world: World) -> list[str]:
    return [each.transactional_id for _, each in world.run(A, records.read_expired())]


@pytest.mark.parametrize(
    ("idle_s", "age_ms", "swept"),
    [
        (SEEN_IDLE_S + 1, SINK_EXPIRY_S * 1000, Swept.LEFT),
        (SEEN_IDLE_S, 400 * DAY_MS, Swept.LEFT),
        (SEEN_IDLE_S + 1, SINK_EXPIRY_S * 1000 + 1, Swept.FORGOTTEN),
    ],
)
def test_an_id_expires_by_its_age_if_it_was_seen_idle(idle_s, age_ms, swept):
    world = watched()
    write_batch(world)
    assert sweep(world, "s", idle_s, age_ms) is swept
    assert (world.run(A, records.read("s")) is None) == (swept is Swept.FORGOTTEN)


def test_a_duplicate_batch_is_recognised_after_its_id_expired():
    world = watched()
    write_batch(world)
    expire(world)
    broker = world.brokers[B]
    assert settle(world, "s", NEXT_RUN) == (CONTENT, True)
    assert world.run(B, broker.sinks.open_branch(batch_of("s", NEXT_RUN), B, 0))[1] is None
    with pytest.raises(StaleBatch):
        settle(world, "s", replace(NEXT_RUN, batch=6))
    assert kept(world) == ["s"]


@pytest.mark.parametrize("sink", ["s", "another name"])
def test_the_next_batch_takes_over_the_kept_commit(sink):
    world = watched()
    write_batch(world)
    expire(world)
    write_batch(world, sink, replace(NEXT_RUN, batch=8))
    assert world.store.transaction(sink).committed_batch == 8
    assert kept(world) == []
    expire(world, sink)
    assert settle(world, sink, replace(NEXT_RUN, batch=8)) == (CONTENT, True)


def test_a_batch_without_rows_takes_over_the_kept_commit():
    world = watched()
    write_batch(world)
    expire(world)
    assert settle(world, "s", replace(NEXT_RUN, batch=8)) == (CONTENT, False)
    assert kept(world) == []
    assert settle(world, "s", NEXT_RUN) == (CONTENT, True)
    expire(world)  # it was unused for long before, and is unused still
    assert settle(world, "s", NEXT_RUN) == (CONTENT, True)


def test_the_later_batch_of_two_expired_ids_counts():
    world = watched()
    write_batch(world, "first")
    write_batch(world, "second", replace(CLAIM, batch=9))
    for sink in ("second", "first"):
        expire(world, sink)
    assert settle(world, "third", replace(NEXT_RUN, batch=9), renamed=True) == (CONTENT, True)


def test_another_query_may_take_an_expired_id():
    world = watched()
    write_batch(world)
    with pytest.raises(SinkInUse):
        write_batch(world, "s", Claim("another", "its run", 0))
    expire(world)
    write_batch(world, "s", Claim("another", "its run", 0))
    with pytest.raises(SinkInUse):
        settle(world, "s", NEXT_RUN)
    assert settle(world, "s again", NEXT_RUN, renamed=True) == (CONTENT, True)


def test_queries_with_a_common_prefix_keep_separate_records():
    world = watched()
    write_batch(world, "s", Claim("q/x", "run", 7))
    expire(world)
    assert settle(world, "s", NEXT_RUN) == (None, False)


@pytest.mark.rule(
    "the expiry of a sink's id, and the next batch of its query",
    "scripts/transactions/finishing.py",
    "consistency/transactions/sinks.py",
)
@pytest.mark.parametrize("batch", [7, 8])
@pytest.mark.parametrize("steps", range(14))
def test_an_expiry_during_a_start_loses_no_commit(steps, batch):
    """The expiry pauses after any of its steps during the query's first call, or vice versa."""
    for expiry_first in (True, False):
        world = watched()
        write_batch(world)
        claim = replace(NEXT_RUN, batch=batch)
        expiry = world.start(A, records.expire_sink(world.store.transaction("s")))
        call = world.start(B, world.brokers[B].sinks.open_branch(batch_of("s", claim), B, 0))
        first, second = (expiry, call) if expiry_first else (call, expiry)
        for _ in range(steps):
            if not first.over:
                world.advance(first)
        for each in (second, first):
            while not each.over:
                world.advance(each)
        assert expiry.error is None
        _, producer = call.result
        assert (producer is None) == (batch == 7)
        again = replace(claim, instance="third run", batch=7)
        assert settle(world, "s", again) == (CONTENT, True)


def test_a_sink_without_an_open_batch_is_deleted_with_its_commits():
    world = watched()
    broker = world.brokers[A]
    write_batch(world)
    world.run(A, broker.sinks.open_branch(batch_of("s", replace(CLAIM, batch=8)), A, 0))
    with pytest.raises(InvalidTransaction, match="batch 8 of 's' is being written"):
        world.run(A, broker.sinks.delete("s"))
    assert settle(world, "s", replace(CLAIM, batch=8)) == (CONTENT, False)
    [(found, expired)] = world.run(A, broker.sinks.list_all())
    assert (found.transactional_id, found.state, expired) == ("s", State.ABORTED, False)
    world.run(A, broker.sinks.delete("s"))
    assert world.run(A, broker.sinks.list_all()) == []
    assert settle(world, "s", NEXT_RUN) == (None, False)


def test_an_expired_sink_is_listed_and_deleted_and_no_other():
    world = watched()
    broker = world.brokers[A]
    for sink in ("s", "u"):
        write_batch(world, sink, replace(CLAIM, query=f"of {sink}"))
        expire(world, sink)
    asked = InitTransactions(transactional_id="a producer", instance="me", timeout_ms=1_000)
    world.run(A, broker.decisions.take_over(asked))
    listed = world.run(A, broker.sinks.list_all())
    assert [(each.transactional_id, expired) for each, expired in listed] == [
        ("s", True),
        ("u", True),
    ]
    world.run(A, broker.sinks.delete("s"))
    assert kept(world) == ["u"]
    for name in ("s", "a producer"):
        with pytest.raises(UnknownTransaction, match="there is no sink"):
            world.run(A, broker.sinks.delete(name))


# -- batch writes ---------------------------------------------------------------------------------

HOUR_MS = 3_600_000
JOB = Claim("job/1", "job/1", 0, timeout_ms=DAY_MS)
NUMBERED = Claim(f"{BATCH_WRITES}s", "batch/1", 7, timeout_ms=DAY_MS)


def listed(world: World, name: str, age_ms: int) -> bool:
    """Return whether the list of transactions has the id so long after its last use."""
    record = world.store.transaction(name)
    world.brokers[B].now_ms = record.deadline_ms - record.timeout_ms + age_ms
    found = world.run(B, world.brokers[B].decisions.describe_all())
    return name in [each.transactional_id for each in found]


@pytest.mark.parametrize(("name", "claim"), [("job/1", JOB), ("sink/s", NUMBERED)])
def test_finished_ids_of_batch_writes_leave_the_lists_after_an_hour(name, claim):
    """Also with a timeout of a day: the time counts from the last use of the id."""
    world = watched()
    write_batch(world, name, claim)
    assert listed(world, name, HOUR_MS)
    assert not listed(world, name, HOUR_MS + 1)
    write_batch(world, "s")  # a streaming query's
    assert listed(world, "s", 400 * DAY_MS)


def test_an_open_batch_write_stays_in_the_lists():
    world = watched()
    world.run(A, world.brokers[A].sinks.open_branch(batch_of("sink/s", NUMBERED), A, 0))
    assert listed(world, "sink/s", 400 * DAY_MS)


def test_a_jobs_record_is_deleted_after_an_hour():
    """So a repeated numbered batch is recognised as a duplicate, and no row is stored twice."""
    world = watched()
    write_batch(world, "job/1", JOB)
    write_batch(world, "sink/s", NUMBERED)
    for name, swept in (("job/1", Swept.FORGOTTEN), ("sink/s", Swept.LEFT)):
        assert sweep(world, name, SEEN_IDLE_S + 1, HOUR_MS + 1) is swept
    again = replace(NUMBERED, instance="batch/2")
    assert settle(world, "sink/s", again) == (CONTENT, True)
    broker = world.brokers[B]
    assert world.run(B, broker.sinks.open_branch(batch_of("sink/s", again), B, 0))[1] is None
