"""A streaming query's sink: numbered batches, written by tasks under branches of a transaction."""

from __future__ import annotations

from typing import Final

from isolog.errors import IsologError
from spark_stream.consistency.ids import NO_TRANSACTION
from spark_stream.consistency.transactions.sinks import Stop
from spark_stream.consistency.transactions.transactions import Content
from spark_stream.wire.transaction_messages import AbortBranch, CommitTransaction, SinkBatch
from tests.simulation.clients.asking import Session
from tests.simulation.clients.transactions import TIMEOUT_MS, commit
from tests.simulation.network import NoAnswer
from tests.simulation.producing import SimulatedProducer
from tests.simulation.schedule import Body
from tests.simulation.world import World

_QUERIES: Final = ("green",)


def write_batches(world: World, name: str) -> Body:
    """One or two runs of the query. The second goes on where the first was."""
    session = Session(world, name)
    query = session.chance.choice(_QUERIES)
    batch = 0
    for run in range(session.chance.randint(1, 2)):
        instance = f"{name}#{run}"
        try:
            for planned in range(session.chance.randint(1, 3)):
                claim = SinkBatch(
                    transactional_id=query,
                    query=query,
                    instance=instance,
                    batch=batch,
                    timeout_ms=TIMEOUT_MS,
                    run=instance,
                    planned=planned,
                )
                if (yield from _write_batch(session, claim)):
                    batch += 1
                yield from session.pause(1.0)
        except (IsologError, NoAnswer) as error:
            world.tell(f"{name}: run {run} ends: {error}")


def _write_batch(session: Session, claim: SinkBatch) -> Body:
    """Whether the batch is committed."""
    _, done = yield from session.run("settle", lambda at: at.transactions.sinks.settle_batch(claim))
    if done:
        return True
    taken: list[int] = []
    number = NO_TRANSACTION
    for _ in range(session.chance.randint(1, 3)):
        found, branch = yield from session.run(
            "open a branch",
            lambda at: at.transactions.sinks.open_branch(
                claim, at.transactions.coordinator, at.transactions.now_ms()
            ),
        )
        if branch is None:
            return True
        number = found.number
        if (yield from _write_branch(session, claim.transactional_id, number, branch)):
            if session.chance.random() < 0.85:  # else a second attempt was faster
                taken.append(branch)
        elif session.chance.random() < 0.7:
            yield from _drop(session, claim, number, branch)
    if session.chance.random() < 0.15:
        stop = Stop(claim.run, claim.planned, claim.batch)
        yield from session.run(
            "stop",
            lambda at: at.transactions.sinks.stop_run(stop, at.transactions.now_ms()),
        )
        return False
    content = (Content("t", len(taken), claim.batch),)
    asked = CommitTransaction(
        transactional_id=claim.transactional_id,
        instance=claim.instance,
        number=number,
        branches=tuple(taken),
        batch=claim.batch,
        content=content,
    )
    session.world.notice("asked", asked)
    yield from commit(session, asked)
    return True


def _write_branch(session: Session, sink: str, number: int, branch: int) -> Body:
    """A task's batches. False: it failed."""
    producer = SimulatedProducer(session)
    producer.write_as(branch, 0, number, sink)
    try:
        return (yield from _write_all(session, producer))
    finally:
        producer.close()


def _write_all(session: Session, producer: SimulatedProducer) -> Body:
    for _ in range(session.chance.randint(1, 2)):
        picked = session.pick_partition()
        if picked is None or session.chance.random() < 0.1:
            return False
        topic, at = picked
        try:
            if not (yield from session.send(producer, topic, at, in_transaction=True)):
                return False
        except IsologError:
            return False
    return True


def _drop(session: Session, claim: SinkBatch, number: int, branch: int) -> Body:
    asked = AbortBranch(
        transactional_id=claim.transactional_id,
        instance=claim.instance,
        number=number,
        producer_id=branch,
    )
    yield from session.run("drop a branch", lambda at: at.transactions.sinks.drop_branch(asked))
