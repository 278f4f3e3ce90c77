"""The producer's core: in any order of events each batch is settled once.

Planted bugs prove that the test detects violations.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

import pyarrow as pa
import pytest

from isolog.errors import (
    BrokerUnavailable,
    DiskFull,
    InvalidTransaction,
    IsologError,
    NotLeader,
    StorageFailure,
    UnknownOutcome,
    UnknownTopic,
)
from spark_stream.client.connecting.routes import Route
from spark_stream.client.writing import core, lanes
from spark_stream.client.writing.core import EndStream, OpenStream, ProducerCore, SendBatch
from spark_stream.client.writing.lanes import Lane, Outgoing, ProducerIdentity
from spark_stream.consistency.partition.producers import EPOCH_MAX
from spark_stream.wire.stream_messages import Acknowledged, BatchRefused
from tests.client.writing.producer_world import World, topic_of
from tests.examples import examples

SEEDS = 1500


def run(seed: int, epoch: int) -> World:
    """Run random events, settle all batches, and check the outcome of each."""
    world = World(seed, epoch)
    often = [world.submit, world.carry_out, world.answer, world.open, world.deliver, world.hear]
    seldom = [world.lose, world.silence, world.move, world.wait]
    seldom += [world.alter, world.restart, world.discard]
    weights = [10] * len(often) + [world.chance.choice([0, 1, 3]) for _ in seldom]
    try:
        for _ in range(world.chance.randrange(150)):
            world.chance.choices([*often, *seldom], weights)[0]()
        world.settle_down()
        world.check()
    except Exception as error:
        error.add_note(f"run({seed}, {epoch})")
        raise
    return world


def run_all(seeds: Iterable[int]) -> None:
    for seed in seeds:
        run(seed, 0)
        run(seed, EPOCH_MAX)


@pytest.mark.rule(
    "outcomes of batches, also after a change of the leader", "client/writing/core.py"
)
@pytest.mark.parametrize("epoch", [0, EPOCH_MAX])
def test_each_batch_is_settled_once_and_correctly_in_any_order_of_events(epoch):
    """Order, window, sequences without gaps, one settlement, no false acknowledgement."""
    kinds = set()
    for seed in range(examples(SEEDS)):
        world = run(seed, epoch)
        kinds |= {type(each.settlements[0][0]).__name__ for each in world.submitted}
    assert kinds == {"Written", "Unacknowledged"}


def drop_stamps(lane: Lane) -> None:
    lane.sent = 0
    for each in lane._batches:
        each.stamp = None


def without_a_gap(method: Callable[..., Any]) -> Callable[..., Any]:
    def call(lane: Lane, *arguments: Any) -> Iterator[Outgoing]:
        before = lane._gap
        found = list(method(lane, *arguments))
        lane._gap = before
        return iter(found)

    return call


def settle_twice(self: ProducerCore, *arguments: Any) -> None:
    settle(self, *arguments)
    self.outcomes.append(self.outcomes[-1])


def restamp_in_the_same_epoch(lane: Lane) -> None:
    restamp(lane)
    lane._gap, lane._sequence = False, 0


def refuse_every_sending(lane: Lane, _: int) -> None:
    for each in lane._batches:
        each.unanswered = 0


def settle_only_the_first(outgoing: Outgoing, settlement: lanes.Settlement) -> None:
    outgoing.settle(settlement)


settle, restamp = ProducerCore._settle, Lane.restamp


def give_up_as_unsent(self: ProducerCore, _: Any, batch: Outgoing, reason: IsologError) -> None:
    self._settle(batch, lanes.Unacknowledged(reason))


BUGS: dict[str, tuple[Any, str, Any]] = {
    "batches of a lost stream are not retried": (Lane, "on_lost", lambda _: None),
    "a retry gets another stamp": (Lane, "on_lost", drop_stamps),
    "the window is larger than that of a leader": (lanes, "WINDOW", 50),
    "a batch that was given up leaves no gap": (
        Lane,
        "remove_expired",
        without_a_gap(Lane.remove_expired),
    ),
    "a batch that was discarded leaves no gap": (
        Lane,
        "remove_all",
        without_a_gap(Lane.remove_all),
    ),
    "an answer settles any batch": (
        Lane,
        "head",
        lambda lane, _: lane._batches[0] if lane.sent else None,
    ),
    "a refusal counts for all sendings": (Lane, "on_refused", refuse_every_sending),
    "unanswered sendings are not counted": (
        lanes.Outgoing,
        "unanswered",
        property(lambda _: 0, lambda *_: None),
    ),
    "no new id after the last epoch": (Lane, "used_up", lambda *_: False),
    "new stamps are in the old epoch": (Lane, "restamp", restamp_in_the_same_epoch),
    "only the first of joined batches is settled": (
        Outgoing,
        "settle_all",
        settle_only_the_first,
    ),
    "a sent batch is given up like an unsent one": (ProducerCore, "_give_up", give_up_as_unsent),
    "a refusal covers earlier sendings": (Outgoing, "may_be_in_log", lambda *_: False),
    "a silent stream is never cancelled": (lanes.LaneStream, "late", lambda *_: False),
    "BrokerStopping is a final answer": (core, "BrokerStopping", ()),
    "NotLeader is a final answer": (core, "_NOT_TAKEN", ()),
    "a batch is settled twice": (ProducerCore, "_settle", settle_twice),
    "deadlines are not checked": (ProducerCore, "tick", lambda *_: None),
    "an assigned identity is not used": (
        ProducerCore,
        "on_identified",
        lambda self, identity, now: setattr(self, "_is_getting_identity", False),
    ),
}


# The first seeds that detect the rarest bugs. `full` searches again.
FOUND = {
    "a batch that was given up leaves no gap": 11184,
    "a refusal counts for all sendings": 1363,
    "new stamps are in the old epoch": 759,
    "a refusal covers earlier sendings": 190,
    "BrokerStopping is a final answer": 519,
}


@pytest.mark.parametrize("name", BUGS)
@pytest.mark.parametrize(
    "first", [FOUND, pytest.param({}, marks=pytest.mark.full)], ids=["recorded", "new"]
)
def test_a_planted_bug_is_found(name, first, monkeypatch):
    where, attribute, replacement = BUGS[name]
    monkeypatch.setattr(where, attribute, replacement)
    with pytest.raises(AssertionError):
        run_all([first[name]] if name in first else range(10 * SEEDS))


def test_a_producer_id_is_requested_once():
    """For any number of waiting batches."""
    world = World(0)
    for _ in range(5):
        world.submit()
    asked = [each for each in world.core.out if isinstance(each, core.GetIdentity)]
    assert len(asked) == 1
    world.core.on_identified(ProducerIdentity(1, 0), world.now)
    assert world.core.identity == ProducerIdentity(1, 0)


@pytest.mark.parametrize(
    "error",
    [
        NotLeader("not me"),
        DiskFull("no room", others_in_sync=True),
        StorageFailure("the write failed", others_in_sync=True),
    ],
)
def test_batches_after_a_refused_one_have_a_certain_outcome(error):
    """Their refusals arrive after the partition has left the stream."""
    world = World(0)
    producer = world.core
    producer.write_as(ProducerIdentity(1, 0), None)
    settled: list[lanes.Settlement] = []
    producer.topic(world.topic, world.now)
    for row in range(3):
        rows = pa.record_batch({"n": [row]})
        producer.submit(world.topic.id, rows, 0, settled.append, world.now)
    route = Route("t", world.topic.id, 0, "a:1", "a:1", 0)
    producer.leaders_found(world.topic.id, {0: route}, world.now)
    producer.stream_opened(0, world.now)
    numbers = [each.number for each in producer.out if isinstance(each, SendBatch)]
    for number in (*numbers, numbers[-1]):
        refused = BatchRefused(number=number, partition=0, error=error, count=0)
        producer.on_acknowledged(0, refused, world.now)
    assert settled == []
    producer.leaders_failed(world.topic.id, UnknownTopic("gone"), world.now)
    world._note()
    assert [type(each.error) for each in settled] == [UnknownTopic] * 3


@pytest.mark.parametrize("kind", [DiskFull, StorageFailure])
def test_a_full_disk_fails_a_batch_without_another_in_sync_replica(kind):
    world = World(0)
    producer = world.core
    producer.write_as(ProducerIdentity(1, 0), None)
    settled: list[lanes.Settlement] = []
    producer.topic(world.topic, world.now)
    producer.submit(world.topic.id, pa.record_batch({"n": [1]}), 0, settled.append, world.now)
    route = Route("t", world.topic.id, 0, "a:1", "a:1", 0)
    producer.leaders_found(world.topic.id, {0: route}, world.now)
    producer.stream_opened(0, world.now)
    (number,) = (each.number for each in producer.out if isinstance(each, SendBatch))
    refused = BatchRefused(number=number, partition=0, error=kind("no write"), count=0)
    producer.on_acknowledged(0, refused, world.now)
    world._note()
    assert [type(each.error) for each in settled] == [kind]


def test_batches_of_a_deleted_topic_have_a_certain_outcome():
    """The broker reports the deletion.

    Only a batch sent earlier to another leader stays unknown.
    """
    world = World(0)
    producer = world.core
    producer.write_as(ProducerIdentity(1, 0), None)
    settled: list[lanes.Settlement] = []
    producer.topic(world.topic, world.now)

    def opened(number: int, address: str) -> None:
        route = Route("t", world.topic.id, 0, address, address, 0)
        producer.tick(world.now + number)  # after the pause of a failure
        producer.leaders_found(world.topic.id, {0: route}, world.now)
        producer.stream_opened(number, world.now)

    rows = pa.record_batch({"n": [1]})
    producer.submit(world.topic.id, rows, 0, settled.append, world.now)
    opened(0, "a:1")
    producer.stream_lost(0, UnknownTopic("gone"), world.now)
    producer.submit(world.topic.id, rows, 0, settled.append, world.now)
    opened(1, "a:1")
    producer.stream_lost(1, BrokerUnavailable("cut"), world.now)
    opened(2, "b:1")
    producer.stream_lost(2, UnknownTopic("gone"), world.now)
    world._note()
    assert [type(each.error) for each in settled] == [UnknownTopic, UnknownOutcome]


def test_idle_streams_are_ended_at_the_limit(monkeypatch):
    """Their partitions continue their sequences on another stream."""
    monkeypatch.setattr(core, "STREAMS_KEPT", 2)
    producer, opened, sequences = ProducerCore(10.0, 10.0), set(), []
    producer.write_as(ProducerIdentity(1, 0), None)
    for turn in range(20):
        topic = topic_of(1, f"t{turn % 10}")
        rows = pa.record_batch({"n": [turn]})
        producer.topic(topic, 0.0)
        producer.submit(topic.id, rows, 0, lambda _: None, 0.0)
        route = Route(topic.name, topic.id, 0, "a:1", "a:1", 0)
        producer.leaders_found(topic.id, {0: route}, 0.0)
        for each in list(producer.out):
            if isinstance(each, OpenStream):
                opened.add(each.stream)
                producer.stream_opened(each.stream, 0.0)
            elif isinstance(each, EndStream):
                opened.remove(each.stream)
        for each in producer.out:
            if isinstance(each, SendBatch):
                sequences.append(each.stamp.sequence)
                facts = {"number": each.number, "partition": 0, "leader_epoch": 0, "partitions": 1}
                ack = Acknowledged(offset=0, count=1, duplicate=False, **facts)
                producer.on_acknowledged(each.stream, ack, 0.0)
        producer.out.clear()
        assert len(opened) <= 2
    assert producer.unsettled == 0
    assert sequences == [0] * 10 + [1] * 10


@pytest.mark.parametrize("epoch", [0, EPOCH_MAX])
def test_each_batch_is_settled_once_while_idle_streams_end(epoch, monkeypatch):
    monkeypatch.setattr(core, "STREAMS_KEPT", 1)
    for seed in range(300):
        run(seed, epoch)


def test_a_batch_submitted_after_close_is_settled():
    """As when one thread closes the producer while another appends."""
    world = World(0)
    world.settle_down()
    world.finished = 0
    world.submit()
    world.carry_out()
    for _ in range(100):
        for step in (world.carry_out, world.answer, world.open, world.deliver, world.hear):
            step()
        world.pass_time(0.05)
    world.check()
    assert world.submitted
    assert not world.wires


def test_a_retried_batch_of_an_ended_transaction_has_an_unknown_outcome():
    """The first leader may have it, and the end of the transaction may have made it visible."""
    world = World(0)
    producer = world.core
    producer.write_as(ProducerIdentity(1, 0, 7), "t")
    settled: list[lanes.Settlement] = []
    producer.topic(world.topic, world.now)
    producer.submit(world.topic.id, pa.record_batch({"n": [1]}), 0, settled.append, world.now)
    for stream, address in enumerate(("a:1", "b:1")):
        route = Route("t", world.topic.id, 0, address, address, stream)
        producer.leaders_found(world.topic.id, {0: route}, world.now)
        producer.stream_opened(stream, world.now)
        if not stream:
            producer.stream_lost(0, BrokerUnavailable("gone"), world.now)
            world.now += 1.0
            producer.tick(world.now)
    number = [each.number for each in producer.out if isinstance(each, SendBatch)][-1]
    over = InvalidTransaction("transaction 7 of 't' is committing")
    refused = BatchRefused(number=number, partition=0, error=over, count=0)
    producer.on_acknowledged(1, refused, world.now)
    world._note()
    assert [type(each.error) for each in settled] == [UnknownOutcome]
