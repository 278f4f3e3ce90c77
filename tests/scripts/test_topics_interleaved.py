"""Topics made, altered and deleted by three brokers in any order of steps, with crashes.

A deleted topic leaves no part, and an existing one has all its parts.
"""

from __future__ import annotations

from contextlib import suppress

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from isolog.errors import IsologError
from spark_stream.cluster.partitions import PARTITIONS, PartitionId, Partitions
from spark_stream.cluster.topics import Topics
from spark_stream.consistency.control.partition_record import PartitionRecord
from spark_stream.consistency.ids import BrokerId
from spark_stream.scripts.steps import Script
from spark_stream.scripts.topics import (
    alter_topic,
    create_topic,
    delete_topic,
    left_overs,
    remove_left_over,
)
from tests.examples import examples
from tests.scripts.on_store import Driven, OnStore
from tests.scripts.topic_stories import B1, B2, B3, MADE, announced, placed, put_anew, sweep
from tests.simulation.store import MemoryRecords, MemoryStore

BROKERS = (B1, B2, B3)
ACTS = st.lists(
    st.tuples(
        st.sampled_from(
            ["step"] * 14 + ["make", "make", "grow", "delete", "sweep", "suspect", "crash", "lead"]
        ),
        st.integers(0, 100),
    ),
    min_size=10,
    max_size=100,
)


class Cluster:
    """Three brokers, each with scripts under way."""

    def __init__(self) -> None:
        first = OnStore(MemoryStore(MemoryRecords()))
        self.brokers = {each: first.other(each) for each in BROKERS}
        self.running: list[tuple[BrokerId, Driven]] = []
        self.made = 0
        self.placed: dict[PartitionId, PartitionRecord] = {}

    def look(self) -> None:
        """Partitions of topics stay at their brokers: there are no moves here."""
        store = self.brokers[B1].store
        for topic in Topics(store).all():
            for number in range(topic.partitions):
                found = Partitions(store).get(PartitionId(topic.id, number))
                assert found is not None, (topic.name, number)
                assert self.placed.setdefault(found.id, found.record) == found.record

    def start(self, broker: BrokerId, script: Script) -> None:
        self.running.append((broker, self.brokers[broker].start(script)))

    def step(self, which: int) -> None:
        if self.running:
            broker, script = self.running[which % len(self.running)]
            try:
                over = not script.advance()
            except IsologError:
                over = True
            if over:
                self.running.remove((broker, script))

    def crash(self, broker: BrokerId) -> None:
        """And it starts again immediately: it has stopped making topics."""
        self.running = [each for each in self.running if each[0] != broker]
        self.brokers[broker] = self.brokers[broker].other(broker)
        sweep(self.brokers[broker], starts=True)

    def make(self, broker: BrokerId, choice: int) -> None:
        self.made += 1
        replicas = [(BROKERS[(choice + n) % 3], BROKERS[(choice + n + 1) % 3]) for n in range(2)]
        topic = replace(MADE, name=f"t{choice % 2}", id=f"id{self.made}", partitions=2)
        self.start(broker, create_topic(topic, placed(*replicas), broker))

    def grow(self, broker: BrokerId, choice: int) -> None:
        where = BROKERS[choice % 3]
        self.start(
            broker,
            alter_topic(
                f"t{choice % 2}",
                lambda old: replace(old, partitions=old.partitions + 1),
                lambda old, new: placed(*([(where,)] * (new.partitions - old.partitions))),
            ),
        )

    def lead(self, choice: int) -> None:
        """Leaders change the records of their partitions, and have not seen any deletion."""
        put_anew(self.brokers[B1].store, replace(MADE, id=f"id{1 + choice % max(1, self.made)}"))

    def settle(self) -> None:
        """All scripts stop, all brokers start again, and run their rounds."""
        for broker in BROKERS:
            self.crash(broker)
        for broker in BROKERS * 3:
            sweep(self.brokers[broker])


def sweeping(broker: BrokerId, *gone: BrokerId) -> Script[None]:
    """A broker's round over the left-overs, step by step.

    ``gone``: the brokers that it believes dead. They may have stalled, and continue.
    """
    for record in (yield from left_overs()):
        yield from remove_left_over(record, broker, gone)


@pytest.mark.rule(
    "the creation, change and deletion of a topic over brokers that may die",
    "scripts/topics.py",
    "scripts/topics.py",
)
@pytest.mark.slow
@settings(max_examples=examples(400), deadline=None)
@given(acts=ACTS)
def test_topics_exist_with_all_parts_or_none(acts):
    cluster = Cluster()
    for act, choice in acts:
        broker = BROKERS[choice % 3]
        if act == "step":
            cluster.step(choice)
        elif act == "make":
            cluster.make(broker, choice)
        elif act == "grow":
            cluster.grow(broker, choice)
        elif act == "delete":
            cluster.start(broker, delete_topic(f"t{choice % 2}"))
        elif act == "sweep":
            cluster.start(broker, sweeping(broker))
        elif act == "suspect":
            cluster.start(broker, sweeping(broker, *(each for each in BROKERS if each != broker)))
        elif act == "lead":
            cluster.lead(choice)
        else:
            cluster.crash(broker)
        cluster.look()
    cluster.settle()
    on = cluster.brokers[B1]
    there = Topics(on.store).all()
    for topic in there:
        for number in range(topic.partitions):
            found = Partitions(on.store).get(PartitionId(topic.id, number))
            assert found is not None, (topic.name, number)
            for each in found.record.replicas:
                assert (each, topic.id) in on.folders, (topic.name, number)
    ids = {topic.id for topic in there}
    assert {topic_id for _, topic_id in on.folders} == ids
    assert {each.key.split("/")[1] for each in on.store.list(PARTITIONS)} == ids
    for topic in there:
        with suppress(IsologError):
            cluster.brokers[B2].run(delete_topic(topic.name))
    cluster.settle()
    assert (on.folders, on.store.list(PARTITIONS), announced(on.store)) == (set(), [], [])
