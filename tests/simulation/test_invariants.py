"""The reports of fetches to invariants, and the entries that a truncation may remove."""

from __future__ import annotations

from contextlib import suppress
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

from isolog.errors import LeaderEpochFenced
from spark_stream.consistency.entries import Entry
from spark_stream.consistency.isolation import Isolation
from spark_stream.storage.settings import Flush
from spark_stream.wire.stream_messages import EndFacts, FetchRange
from tests.simulation.fetching import watched
from tests.simulation.history import Course, Line, Seen
from tests.simulation.invariants.logs import unexplained
from tests.support import NUMBERS, numbers


def lines(*, committed: int) -> tuple[Line, Line]:
    """A replica and its leader with the same three entries, of which some are committed."""
    course = Course("orders", ("1", 0), Flush.INTERVAL)
    line, led = Line(course, "follower"), Line(course, "leader")
    for index in range(3):
        seen = Seen(Entry(index, index, 0, 0, 1, 1, 0), (index,))
        for fold in (line, led, *([course.committed] if index < committed else [])):
            fold.add(seen)
    return line, led


def test_a_truncation_explains_missing_uncommitted_entries():
    line, led = lines(committed=2)
    line.may_be_cut = True
    assert unexplained(line, line.entries, led) == line.entries[:2]


def test_a_truncation_explains_missing_entries_that_the_leader_evicted():
    line, led = lines(committed=3)
    line.may_be_cut = True
    led.begin_at(2)
    assert unexplained(line, line.entries, led) == line.entries[2:]


def test_a_missing_entry_without_a_truncation_is_reported():
    line, led = lines(committed=0)
    assert unexplained(line, line.entries, led) == line.entries


def test_a_removal_explains_that_all_entries_are_missing():
    line, led = lines(committed=3)
    line.may_be_gone = True
    assert unexplained(line, line.entries, led) == []


def told_of(answers: Any) -> list[str]:
    """The reports of a fetch by a reader of all records that had read up to 3."""
    told: list[str] = []
    line, _ = lines(committed=0)
    history = SimpleNamespace(lines={("follower", line.course.place): line})
    world: Any = Mock(history=history, notice=lambda what, *_: told.append(what))
    asked = FetchRange(
        topic="orders", topic_id="1", partition=0, start=3, isolation=Isolation.READ_UNCOMMITTED
    )
    broker: Any = Mock(broker_id="follower")
    with suppress(LeaderEpochFenced):
        list(watched(world, broker, asked, (0, 1, 2), NUMBERS, answers))
    return told


def test_a_reader_continues_after_an_answer():
    facts = EndFacts(next=3, lineage=(), bounds=None, partitions=1, leader_epoch=1, range=0)
    answer = numbers(0, 0), facts.to_bytes()
    assert told_of(each for each in [answer, answer]) == ["went_on", "looked", "looked"]


def test_a_reader_does_not_continue_where_its_fetch_is_refused():
    """Its leader was replaced and leads again: other records are in the place of its records."""

    def answers() -> Any:
        raise LeaderEpochFenced("another epoch", topic="orders", partition=0, leader_epoch=3)
        yield

    assert told_of(answers()) == []
