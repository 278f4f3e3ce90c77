"""Sessions of named readers on a store: renewals and endings."""

from __future__ import annotations

import pytest

from isolog.errors import ConsumerFenced
from spark_stream.cluster.consumers import ReaderSession
from spark_stream.consistency.isolation import Isolation, ReaderEnding
from spark_stream.scripts import groups
from spark_stream.scripts.readers import (
    GROUP,
    SessionWatch,
    delete_name,
    end_readers,
    read_named,
    record_heartbeat,
    session_ms_of,
)
from spark_stream.scripts.transactions.positions import take_name
from tests.scripts.on_store import OnStore
from tests.scripts.test_groups import WithTopics, member
from tests.simulation.store import MemoryRecords, MemoryStore


@pytest.fixture
def on() -> WithTopics:
    return WithTopics(MemoryStore(MemoryRecords()))


def session(
    instance: str, ending: ReaderEnding = ReaderEnding.NONE, idle_ms: int = 0
) -> ReaderSession:
    return ReaderSession(instance, 4_000, Isolation.READ_COMMITTED, idle_ms, ending)


def ending(on: OnStore, kind: str = "client", name: str = "c") -> ReaderEnding | None:
    found = on.run(read_named()).readers.get((kind, name))
    return None if found is None else found.ending


def start(on: OnStore, instance: str) -> None:
    on.run(take_name("c", instance))
    on.run(record_heartbeat("client", "c", session(instance), claim=True))


def pass_seconds(on: OnStore, watch: SessionWatch, start: int, end: int) -> list[str]:
    return [
        text
        for second in range(start, end)
        for text in on.run(end_readers(watch, lambda second=second: float(second)))
    ]


@pytest.mark.rule("a reader whose session expired is lost", "scripts/readers.py")
def test_a_reader_without_heartbeats_is_lost_once_its_session_expired(on):
    start(on, "1")
    watch = SessionWatch(session_ms_of)
    assert pass_seconds(on, watch, 0, 4) == []
    on.run(record_heartbeat("client", "c", session("1", idle_ms=7)))
    assert pass_seconds(on, watch, 4, 8) == []
    assert ending(on) is ReaderEnding.NONE
    assert pass_seconds(on, watch, 8, 12) == ["client 'c'"]
    assert ending(on) is ReaderEnding.LOST
    assert pass_seconds(on, watch, 12, 20) == []
    on.run(record_heartbeat("client", "c", session("1")))  # its process was only suspended
    assert ending(on) is ReaderEnding.NONE


def test_a_session_does_not_expire_while_its_broker_cannot_check(on):
    start(on, "1")
    watch = SessionWatch(session_ms_of)
    pass_seconds(on, watch, 0, 2)
    assert pass_seconds(on, watch, 100, 104) == []


def test_a_reader_that_ended_is_never_lost(on):
    start(on, "1")
    on.run(record_heartbeat("client", "c", session("1", ReaderEnding.CLEAN)))
    on.run(record_heartbeat("client", "c", session("1")))  # a late one
    assert pass_seconds(on, SessionWatch(session_ms_of), 0, 20) == []
    assert ending(on) is ReaderEnding.CLEAN


def test_an_earlier_reader_is_fenced(on):
    start(on, "1")
    start(on, "2")
    for late in (session("1"), session("1", ReaderEnding.CLEAN)):
        with pytest.raises(ConsumerFenced):
            on.run(record_heartbeat("client", "c", late))
    assert ending(on) is ReaderEnding.NONE


def test_the_session_of_an_earlier_owner_is_ignored(on):
    start(on, "1")
    on.run(record_heartbeat("client", "c", session("1", ReaderEnding.LOST)))
    on.run(take_name("c", "without heartbeats"))
    assert ending(on) is None


def test_a_deleted_name_has_no_session(on):
    start(on, "1")
    on.run(delete_name("c"))
    on.run(take_name("c", "1"))
    assert ending(on) is None


def test_the_last_member_of_a_group_decides_how_it_ended(on):
    def left(*, last_hangs: bool) -> ReaderEnding | None:
        for name in ("1", "2"):
            on.run(groups.join("g", member(name)))
        on.run(groups.leave("g", "1", hangs=not last_hangs))
        on.run(groups.leave("g", "2", hangs=last_hangs))
        return ending(on, GROUP, "g")

    assert left(last_hangs=False) is ReaderEnding.CLEAN
    assert left(last_hangs=True) is ReaderEnding.LOST


def test_a_group_whose_last_session_expired_is_lost(on):
    on.run(groups.join("g", member("1")))
    watch = SessionWatch(groups.session_ms_of)
    for second in range(7):
        on.run(groups.end_sessions(watch, lambda second=second: float(second), 7))
    assert ending(on, GROUP, "g") is ReaderEnding.LOST
    assert pass_seconds(on, SessionWatch(session_ms_of), 0, 20) == []
