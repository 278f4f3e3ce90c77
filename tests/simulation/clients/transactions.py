"""A producer that writes in transactions, in several lives: each takes the id over."""

from __future__ import annotations

from random import Random
from typing import Final

from msgspec.structs import replace

from isolog.errors import IsologError, ProducerFenced, TransactionAborted
from spark_stream.consistency.transactions.transactions import PositionOf, Transaction
from spark_stream.wire.transaction_messages import (
    AbortTransaction,
    BeginTransaction,
    CommitTransaction,
    InitTransactions,
)
from tests.simulation.clients.asking import Session
from tests.simulation.history import Finish
from tests.simulation.network import NoAnswer
from tests.simulation.producing import SimulatedProducer
from tests.simulation.schedule import Body, Signal
from tests.simulation.world import World

TIMEOUT_MS: Final = 3_000
_IDS: Final = ("red", "blue")
CONSUMERS: Final = ("ann", "ann", "bob")


def write_in_transactions(world: World, name: str) -> Body:
    """One or two instances, with some transactions each."""
    session = Session(world, name)
    transactional_id = session.chance.choice(_IDS)
    for life in range(session.chance.randint(1, 2)):
        try:
            yield from _live(session, transactional_id, f"{name}#{life}")
        except (ProducerFenced, NoAnswer) as error:
            world.tell(f"{name}: ends: {error}")


def _live(session: Session, transactional_id: str, instance: str) -> Body:
    chance = session.chance
    timeout_ms = chance.choice((TIMEOUT_MS, TIMEOUT_MS, 2 * TIMEOUT_MS))
    taken = InitTransactions(
        transactional_id=transactional_id, instance=instance, timeout_ms=timeout_ms
    )
    yield from session.run(
        "take over",
        lambda at: at.transactions.decisions.take_over(taken),
    )
    moved: dict[str, int] = {}
    consumer = chance.choice(CONSUMERS) if chance.random() < 0.5 else None
    if consumer is not None:
        moved[consumer] = yield from take_name(session, consumer, instance)
    ended: Transaction | None = None
    after = -1
    producer = SimulatedProducer(session)
    for _ in range(chance.randint(1, 3)):
        begun = None if ended is None else _reserved(ended)
        if begun is None or chance.random() < 0.3:
            begun = yield from _begin(session, transactional_id, instance, after)
        if begun is None:
            return
        after = begun.number
        if producer.core.unsettled:  # later batches belong to another transaction
            producer.close()
            producer = SimulatedProducer(session)
        producer.write_as(begun.producer_id, begun.epoch, begun.number, transactional_id)
        late = yield from _write(session, begun, producer)
        if chance.random() < 0.3:
            yield from session.pause(4.0)
        ended = yield from _end(session, begun, instance, moved)
        if chance.random() < 0.5:
            yield from _wait_for(late)
    producer.close()
    if chance.random() < 0.3:
        yield from session.pause(5.0)


def _reserved(ended: Transaction) -> Transaction | None:
    """The next transaction by the answer to an end, or None if its number is not reserved."""
    if ended.reserved < 0:
        return None
    return replace(ended, number=ended.reserved, epoch=ended.epoch + 1)


def take_name(session: Session, consumer: str, instance: str) -> Body:
    """Takes a consumer's name. The offset after which it goes on."""
    found = yield from session.run(
        f"take {consumer}",
        lambda at: at.transactions.consumers.take(consumer, instance),
    )
    session.world.notice("owned", consumer, instance, found)
    return max((each.offset for each in found), default=0)


def _begin(session: Session, transactional_id: str, instance: str, after: int) -> Body:
    asked = BeginTransaction(transactional_id=transactional_id, instance=instance, after=after)
    try:
        return (
            yield from session.run(
                "begin",
                lambda at: at.transactions.decisions.begin(asked),
            )
        )
    except ProducerFenced:
        raise
    except IsologError:
        return None


def _write(session: Session, begun: Transaction, producer: SimulatedProducer) -> Body:
    """Some batches. The signals of those that are still on their way."""
    late: list[Signal] = []
    for number in range(session.chance.randint(1, 4)):
        picked = session.pick_partition()
        if picked is None:
            break
        topic, at = picked
        sending = session.send(producer, topic, at, in_transaction=True)
        if session.chance.random() < 0.3:  # the next call does not wait for it
            name = f"{session.name} batch {begun.number}.{number}"
            late.append(session.world.start_client(name, _quietly(sending)))
            continue
        try:
            if not (yield from sending):
                break
        except ProducerFenced:
            raise
        except IsologError:
            break
    return late


def _quietly(sending: Body) -> Body:
    try:
        yield from sending
    except (IsologError, NoAnswer):
        return


def _wait_for(signals: list[Signal]) -> Body:
    yield from signals


def _end(session: Session, begun: Transaction, instance: str, moved: dict[str, int]) -> Body:
    """Commits, aborts, or gives up without a word. Returns the answer, if there is one."""
    chance, name = session.chance, begun.transactional_id
    choice = chance.random()
    if choice < 0.12:
        return None
    try:
        if choice < 0.3:
            ended = AbortTransaction(transactional_id=name, instance=instance, number=begun.number)
            abort = session.run("abort", lambda at: at.transactions.decisions.abort(ended))
            return (yield from _note_finish(session, abort, begun.number))
        asked = _commit(begun, instance, moved, chance)
        session.world.notice("asked", asked)
        if asked.positions and chance.random() < 0.3:  # another consumer takes the name over
            rival = take_name(session, asked.positions[0].consumer, f"{instance}'s rival")
            session.world.start_client(f"{session.name} rival", _quietly(rival))
        if chance.random() < 0.2:  # another broker gets the same request at the same time
            again = f"{session.name} commits twice"
            session.world.start_client(again, _quietly(commit(session, asked)))
        answer = yield from commit(session, asked)
        if chance.random() < 0.2:
            yield from commit(session, asked)
    except ProducerFenced:
        raise
    except IsologError:
        return None
    return answer


def _commit(
    begun: Transaction, instance: str, moved: dict[str, int], chance: Random
) -> CommitTransaction:
    positions: tuple[PositionOf, ...] = ()
    if moved and chance.random() < 0.7:
        for name in moved:
            moved[name] += 1
        positions = tuple(PositionOf(name, "in", "in", 0, at) for name, at in moved.items())
    owners = {each.consumer: instance for each in positions}
    return CommitTransaction(
        transactional_id=begun.transactional_id,
        instance=instance,
        number=begun.number,
        branches=(begun.producer_id,),
        positions=positions,
        owners=owners,
    )


def commit(session: Session, asked: CommitTransaction) -> Body:
    """Commits. Raises as ``Session.run``."""
    calling = session.run("commit", lambda at: at.transactions.decisions.commit(asked))
    answer = yield from _note_finish(session, calling, asked.number, asked.branches)
    session.world.tell(f"{session.name}: transaction {asked.number} is {answer.state}")
    session.world.notice("committed", asked, answer)
    return answer


def _note_finish(
    session: Session, calling: Body, transaction: int, taken: tuple[int, ...] | None = None
) -> Body:
    """Ends a transaction, and records its client's answer. ``taken`` is None for an abort."""
    world, commits = session.world, taken is not None
    called = world.history.moment()

    def note(outcome: str) -> None:
        finish = Finish(session.name, commits, transaction, taken or (), called, outcome)
        world.notice("over", finish)

    try:
        answer = yield from calling
    except TransactionAborted:
        note("failed" if commits else "ok")
        raise
    except (IsologError, NoAnswer):
        note("unknown")
        raise
    note("ok")
    return answer
