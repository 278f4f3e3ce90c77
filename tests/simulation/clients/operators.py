"""Operators: they look at transactions, end them, and make and delete topics."""

from __future__ import annotations

from functools import partial
from operator import methodcaller

from isolog.errors import IsologError
from spark_stream.cluster.partitions import PartitionId
from spark_stream.consistency.transactions.transactions import Transaction
from spark_stream.scripts.steps import Script
from spark_stream.wire.transaction_messages import KillTransaction
from tests.simulation.broker import SimulatedBroker
from tests.simulation.clients.asking import Session
from tests.simulation.network import NoAnswer
from tests.simulation.schedule import Body
from tests.simulation.world import World


def meddle(world: World, name: str) -> Body:
    """Ends transactions that are open."""
    session = Session(world, name)
    for _ in range(session.chance.randint(1, 3)):
        yield from session.pause(4.0)
        try:
            found = yield from session.run(
                "list",
                lambda at: at.transactions.decisions.describe_all(),
            )
            if found:
                chosen = session.chance.choice(found)
                yield from session.run("kill", partial(_kill, chosen))
        except (IsologError, NoAnswer) as error:
            world.tell(f"{name}: {error}")


def _kill(chosen: Transaction, at: SimulatedBroker) -> Script[Transaction]:
    return at.transactions.decisions.kill(
        KillTransaction(transactional_id=chosen.transactional_id, number=chosen.number)
    )


def make_and_delete_topics(world: World, name: str) -> Body:
    """Makes topics, gives them more partitions, deletes some, and makes others of their names."""
    session = Session(world, name)
    for number in range(session.chance.randint(1, 3)):
        yield from session.pause(3.0)
        topics = world.topics()
        try:
            choice = session.chance.random()
            if topics and choice < 0.25:
                grown = session.chance.choice(topics)
                alter = methodcaller("alter_topic", grown.name, grown.partitions + 1)
                what = f"{grown.name} gets one more partition"
                yield from session.call(session.any_broker(), what, alter)
            elif topics and choice < 0.55:
                gone = session.chance.choice(topics)
                delete = methodcaller("delete_topic", gone.name)
                yield from session.call(session.any_broker(), f"delete {gone.name}", delete)
            else:
                made = f"topic-{session.chance.randrange(4)}"
                config = {"flush": session.chance.choice(("none", "batch"))}
                partitions = session.chance.randint(1, 2)
                replicas = world.replication_factor(session.chance)
                create = methodcaller("create_topic", made, partitions, replicas, config)
                yield from session.call(session.any_broker(), f"make {made} ({number})", create)
        except (IsologError, NoAnswer) as error:
            world.tell(f"{name}: {error}")


def trim_partitions(world: World, name: str) -> Body:
    """Moves log starts, also to offsets that the partitions do not have yet."""
    session = Session(world, name)
    for _ in range(session.chance.randint(1, 4)):
        yield from session.pause(3.0)
        picked = session.pick_partition()
        if picked is None:
            continue
        topic, at = picked
        course = world.history.courses[topic.id, at]
        ends = [each.end for each in course.committed.entries] or [0]
        before = max(0, session.chance.choice(ends) + session.chance.randint(-1, 1))
        what = f"trim {topic.name}/{at} before {before}"
        try:
            world.tell(f"{name}: {what}")
            ask = methodcaller("trim", topic, {at: before})
            starts = yield from session.call(session.any_broker(), what, ask)
            world.tell(f"{name}: {topic.name}/{at} starts at {starts[at]}")
            world.notice("trimmed", course, before)
        except (IsologError, NoAnswer) as error:
            world.tell(f"{name}: {error}")


def move_replicas(world: World, name: str) -> Body:
    """Moves replicas to other brokers, lets preferred leaders lead, has brokers leave or stay."""
    session = Session(world, name)
    for _ in range(session.chance.randint(1, 4)):
        yield from session.pause(3.0)
        picked = session.pick_partition()
        if picked is None:
            continue
        topic, at = picked
        place = PartitionId(topic.id, at)
        ids = [each.broker_id for each in world.brokers]
        choice = session.chance.random()
        if choice < 0.45:
            what, ask = "prefer leaders", methodcaller("prefer", [place])
        elif choice < 0.6 and len(ids) > 1:
            verb = session.chance.choice(("decommission", "decommission", "recommission"))
            broker = session.chance.choice(ids)
            what, ask = f"{verb} {broker}", methodcaller(verb, broker)
        else:
            target = session.chance.sample(ids, min(topic.replication_factor, len(ids)))
            what = f"move {topic.name}/{at} to {target}"
            ask = methodcaller("move", place, target)
        try:
            world.tell(f"{name}: {what}")
            yield from session.call(session.any_broker(), what, ask)
        except (IsologError, NoAnswer) as error:
            world.tell(f"{name}: {error}")
