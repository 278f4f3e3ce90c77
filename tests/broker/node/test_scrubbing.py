"""A broker reads its segments: its pace, its pauses, and the consequences of damage."""

from __future__ import annotations

import logging
import threading
from typing import Any

import pytest

from isolog.errors import DamagedSegment, LeaderUnavailable, NotLeader
from spark_stream.broker.node.registration import DamagedReplicas
from spark_stream.broker.node.scrubbing import Scrub
from spark_stream.cluster.brokers import Brokers, RegisteredBroker
from spark_stream.cluster.generations import FoundLogs, GenerationRecords
from spark_stream.consistency.control.partition_record import Member
from spark_stream.consistency.ids import BrokerId, Generation
from tests.broker.clusters import around, make, see
from tests.broker.local_broker import LocalBroker, Surroundings, replicate
from tests.support import numbers

__all__ = ["around"]

BATCHES = 12


class Waits(threading.Event):
    """An event that is set after so many waits, with their total time."""

    def __init__(self, most: int = 1_000_000) -> None:
        super().__init__()
        self.waited_s, self._left = 0.0, most

    def wait(self, timeout: float | None = None) -> bool:
        self.waited_s += timeout or 0.0
        self._left -= 1
        if self._left <= 0:
            self.set()
        return self.is_set()


def scrub_of(broker: LocalBroker, pace: int = 1 << 30, stopped: threading.Event | None = None):
    return Scrub(broker.host, broker.around.clock, pace, 100.0, stopped or Waits())


def fill(broker: LocalBroker, topic: str, assignment: str) -> None:
    """A topic whose closed segments hold all batches but the last ones."""
    make(broker, topic, assignment, **{"segment.bytes": "65536"})
    for _ in range(BATCHES):
        broker.partition(topic).append(numbers(0, 2_000))
    assert len(broker.partition(topic).log.segments) > 2


def damage(broker: LocalBroker, topic: str) -> None:
    """Change a byte of the first batch."""
    segment = broker.replica(topic).log.segments[0]
    with segment.name.arrow.open("r+b") as file:
        place = int(segment.table[0]["position"]) + 99
        file.seek(place)
        byte = file.read(1)[0]
        file.seek(place)
        file.write(bytes([byte ^ 1]))


@pytest.fixture
def a(around: Surroundings) -> LocalBroker:
    found = around.start("a")
    fill(found, "t", "a")
    return found


def test_a_scrub_reads_all_segments_at_its_pace_and_logs_that(a, caplog):
    stopped = Waits()
    scrub = scrub_of(a, 10_000, stopped)
    assert scrub.last is None
    with caplog.at_level(logging.INFO):
        assert scrub.look() == 100.0  # by the clock of the test no time has passed
    segments = a.partition("t").log.segments
    size = sum(int(segment.table["length"].sum()) for segment in segments)
    assert (scrub.last.size, scrub.last.damaged) == (size, 0)
    assert stopped.waited_s == pytest.approx(size / 10_000, rel=0.05)
    assert "no damage found" in caplog.text


def test_a_scrub_ends_as_soon_as_the_broker_stops(a):
    scrub = scrub_of(a, 10_000, Waits(1))
    scrub.look()
    assert scrub.last is None


def test_without_a_pace_no_segment_is_read(a):
    damage(a, "t")
    scrub = scrub_of(a, 0)
    assert scrub.look() == 100.0
    assert scrub.last is None
    assert a.partition("t").log.hole is None


def member(broker: LocalBroker) -> Member:
    return Member(broker.id, broker.generation)


def leave(broker: LocalBroker, generation: str) -> None:
    """A broker that has to leave the ISRs registers with another generation."""
    broker.generation = Generation(generation)
    Brokers(broker.store).register(
        RegisteredBroker(broker.id, "a:1", broker.incarnation, "1", broker.generation)
    )
    broker.host.change_generation(broker.generation)


def test_damage_in_the_only_copy_is_logged_once(a, caplog):
    damage(a, "t")
    scrub, replicas = scrub_of(a), DamagedReplicas(a.host, a.members)
    with caplog.at_level(logging.ERROR):
        scrub.look()
        assert not any(replicas.need_to_leave(member(a)) for _ in range(3))
    assert scrub.last.damaged == 1
    assert "1 batches are damaged" in caplog.text
    assert caplog.text.count("no other in-sync replica is alive") == 1


@pytest.fixture
def pair(around: Surroundings) -> tuple[LocalBroker, LocalBroker, DamagedReplicas]:
    """``a`` leads ``t/0`` with undetected damage in its copy, and ``b`` follows."""
    a, b = around.start("a"), around.start("b")
    see(around)
    fill(a, "t", "ab")
    see(around)
    replicate(a, b, "t")
    damage(a, "t")
    return a, b, DamagedReplicas(a.host, a.members)


def test_a_damaged_leader_leaves_the_isr_and_heals(pair, caplog):
    a, b, replicas = pair
    assert {each.broker for each in a.record("t").isr} == {"a", "b"}
    assert not replicas.need_to_leave(member(a))
    scrub_of(a).look()
    with caplog.at_level(logging.ERROR):
        assert replicas.need_to_leave(member(a))
        assert replicas.left_replicas == ["t/0"]
        leave(a, "a's next logs")
        assert not replicas.need_to_leave(member(a))  # it has left, and heals
    see(a.around)
    b.control_once()
    see(a.around)
    assert a.record("t").leader == "b"
    assert a.replica("t").following.sound_end()[1] == 0
    replicate(b, a, "t")
    assert a.replica("t").log.hole is None
    scrub = scrub_of(a)
    scrub.look()
    assert scrub.last.damaged == 0
    assert a.replica("t").log.end == b.partition("t").log.end
    assert "are lost" not in caplog.text
    assert not replicas.need_to_leave(member(a))
    assert replicas.left_replicas == []


def test_the_generation_after_damage_survives_a_restart(around):
    generations = GenerationRecords(around.store(), BrokerId("a"))
    ends: Any = {}
    generations.begin(FoundLogs(None, ends, True, "boot"), "run 1", lambda: "first")
    generations.begin_generation("run 1", Generation("next"))
    generations.begin_generation("an earlier run", Generation("old"))
    again = generations.begin(FoundLogs("run 1", ends, True, "boot"), "run 2", lambda: "other")
    assert again == ("next", None)


def test_a_reader_of_damaged_records_is_sent_to_the_next_leader(pair):
    a, _, _ = pair
    partition = a.partition("t")
    error = DamagedSegment("it fails its checksum")
    with pytest.raises(LeaderUnavailable):
        partition.check_alone(error)
    fill(a, "alone", "a")
    a.partition("alone").check_alone(error)


def test_a_reader_of_damaged_records_is_sent_to_the_leader_after_a_change(pair):
    a, b, replicas = pair
    old = a.partition("t")
    scrub_of(a).look()
    replicas.need_to_leave(member(a))
    leave(a, "a's next logs")
    see(a.around)
    b.control_once()
    see(a.around)
    assert a.record("t").leader == "b"
    with pytest.raises(NotLeader):
        old.check_alone(DamagedSegment("it fails its checksum"))


def test_a_leader_detects_damage_when_it_sends_its_entries(around):
    a, b = around.start("a"), around.start("b")
    see(around)
    fill(a, "t", "ab")
    see(around)
    damage(a, "t")
    with pytest.raises(DamagedSegment):
        replicate(a, b, "t")
    assert a.partition("t").log.hole == 0


def test_a_damaged_broker_stays_while_another_partition_needs_it(pair, caplog):
    a, _, replicas = pair
    c = a.around.start("c")
    see(a.around)
    make(a, "other", "ac")
    c.die()  # and still counts as in sync
    scrub_of(a).look()
    with caplog.at_level(logging.ERROR):
        assert not replicas.need_to_leave(member(a))
    assert "leaves the ISRs once" in caplog.text
    a.around.start("c")
    see(a.around)
    assert replicas.need_to_leave(member(a))
