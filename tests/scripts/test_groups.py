"""Scripts of consumer groups on a store: half-done changes of brokers, and removals of members."""

from __future__ import annotations

import pytest

from isolog.errors import (
    ConsumerFenced,
    InternalError,
    InvalidRequest,
    IsologError,
    MetadataUnavailable,
    UnknownTopic,
)
from spark_stream.cluster.consumers import CONSUMERS, SESSIONS, session_of
from spark_stream.cluster.stores.store import StoreRecord
from spark_stream.cluster.topics import Topic
from spark_stream.consistency.groups import Group, GroupMember, Owner
from spark_stream.consistency.isolation import Isolation, ReaderEnding
from spark_stream.consistency.transactions.transactions import PositionOf
from spark_stream.scripts import groups
from spark_stream.scripts.readers import SessionWatch, read_named
from spark_stream.scripts.steps import FindTopic, ListRecords, Script
from spark_stream.scripts.transactions.deciding import Consumers
from spark_stream.scripts.transactions.finishing import Finisher
from spark_stream.scripts.transactions.positions import store_positions, take_name
from tests.scripts.on_store import OnStore
from tests.simulation.broker import SCHEMA
from tests.simulation.store import MemoryRecords, MemoryStore


class WithTopics(OnStore):
    """A broker with the topic ``t``, which has two partitions."""

    is_store_away = False

    def carry_out(self, step):
        if self.is_store_away:
            raise MetadataUnavailable("no answer")
        if isinstance(step, FindTopic):
            if step.name != "t":
                raise UnknownTopic(step.name)
            return Topic("t", "id", SCHEMA, 2, {}, replication_factor=1)
        return super().carry_out(step)


@pytest.fixture
def on() -> WithTopics:
    return WithTopics(MemoryStore(MemoryRecords()))


def member(name: str, *topics: str) -> GroupMember:
    return GroupMember(name, topics or ("t",), 4_000, Isolation.READ_UNCOMMITTED)


def group(on: OnStore) -> Group:
    found: Group = on.run(read_named()).groups["g"]
    return found


def position(offset: int, number: int = 0) -> PositionOf:
    return PositionOf("g", "t", "id", number, offset)


def test_a_partition_moves_once_its_member_has_released_it(on):
    first = on.run(groups.join("g", member("1")))
    assert [each.partition for each in first.assigned] == [0, 1]
    on.run(groups.join("g", member("2")))
    told = on.run(groups.beat("g", "1"))
    assert [each.partition for each in told.revoked] == [1]
    assert on.run(groups.beat("g", "2")).assigned == ()
    on.run(groups.beat("g", "1", told.revoked))
    assert [each.partition for each in on.run(groups.beat("g", "2")).assigned] == [1]


def test_a_heartbeat_of_a_settled_group_needs_no_fresh_read(on):
    on.run(groups.join("g", member("1")))
    on.steps.clear()
    on.run(groups.beat("g", "1"))
    assert [step for step in on.steps if getattr(step, "fresh", False)] == []


def test_a_missing_topic_does_not_prevent_a_join(on):
    told = on.run(groups.join("g", member("1", "gone", "t")))
    assert len(told.assigned) == 2


def test_a_member_that_left_is_fenced(on):
    on.run(groups.join("g", member("1")))
    on.run(groups.leave("g", "1"))
    assert on.store.list(SESSIONS) == []
    assert group(on).members == ()
    with pytest.raises(ConsumerFenced):
        on.run(groups.beat("g", "1"))
    with pytest.raises(ConsumerFenced):
        on.run(groups.beat("none", "1", renew=True))
    assert on.store.get(CONSUMERS + "none") is None


def test_two_concurrent_joins_both_succeed(on):
    late = on.start(groups.join("g", member("1")))
    for _ in range(4):
        late.advance()
    on.other("b2").run(groups.join("g", member("2")))
    late.end()
    assert [each.id for each in group(on).members] == ["1", "2"]


@pytest.mark.parametrize("steps", range(8))
def test_left_overs_of_a_join_or_an_end_are_removed(on, steps):
    """They go with the expiry of the session, or with the next change. Another member reads all."""
    on.stops_after(groups.join("g", member("1")), steps)
    watch, now = SessionWatch(groups.session_ms_of), 0.0
    on.run(groups.end_sessions(watch, lambda: 0.0, 7))
    for _ in range(6):
        now += 1.0
        on.stops_after(groups.end_sessions(watch, lambda now=now: now, 7), steps)
    told = on.run(groups.join("g", member("2")))
    if len(told.assigned) < 2:  # its session is on record: it will expire
        for _ in range(6):
            now += 1.0
            on.run(groups.beat("g", "2", renew=True))
            on.run(groups.end_sessions(watch, lambda now=now: now, 7))
    assert [each.id for each in group(on).members] == ["2"]
    assert len(on.run(groups.beat("g", "2")).assigned) == 2


def test_a_session_renewed_during_a_check_continues(on):
    on.run(groups.join("g", member("1")))
    watch = SessionWatch(groups.session_ms_of)
    for now in (0.0, 2.0):
        assert on.run(groups.end_sessions(watch, lambda now=now: now, 7)) == []
    late = on.start(groups.end_sessions(watch, lambda: 4.5, 7))
    late.advance()  # it has read all sessions
    on.run(groups.beat("g", "1", renew=True))
    assert late.end() == []
    assert [each.id for each in group(on).members] == ["1"]


def seen(watch: SessionWatch, version: int, now_s: float) -> bool:
    record = StoreRecord(session_of("g", "1"), {"session_ms": 4_000}, version)
    return watch.find_expired([record], now_s, now_s) != []


@pytest.mark.rule("the end of a member's session", "scripts/groups.py")
def test_only_time_with_checks_counts_for_a_sessions_expiry():
    watch = SessionWatch(groups.session_ms_of)
    assert not seen(watch, 1, 100.0)  # an earlier change may be a moment ago
    assert not seen(watch, 1, 102.0)
    assert not seen(watch, 2, 104.0)
    assert not seen(watch, 2, 106.0)
    assert not seen(watch, 2, 166.0)  # it could not look, so others could not beat
    assert not seen(watch, 2, 167.5)
    assert seen(watch, 2, 169.0)
    assert not seen(watch, 3, 171.0)


def test_a_sessions_age_starts_at_the_read_that_found_it():
    watch = SessionWatch(groups.session_ms_of)
    record = StoreRecord(session_of("g", "1"), {"session_ms": 4_000}, 1)
    assert watch.find_expired([record], 100.0, 101.0) == []
    assert watch.find_expired([record], 103.0, 103.0) == []
    assert watch.find_expired([record], 104.5, 104.5) == []
    assert watch.find_expired([record], 105.5, 105.5) == [record]


def test_only_the_assigned_member_stores_positions(on):
    first = on.run(groups.join("g", member("1")))
    one = str(Owner("1", first.epoch, 0))
    on.run(store_positions([position(5)], {"g": one}))
    second = on.run(groups.join("g", member("2")))
    told = on.run(groups.beat("g", "1"))
    told = on.run(groups.beat("g", "1", told.revoked))
    other = str(Owner("2", on.run(groups.beat("g", "2")).epoch, 0))
    with pytest.raises(ConsumerFenced):
        on.run(store_positions([position(1, 1)], {"g": one}))
    on.run(store_positions([position(2, 1)], {"g": other}))
    with pytest.raises(ConsumerFenced):
        on.run(store_positions([position(6), position(3, 1)], {"g": other}))
    with pytest.raises(InvalidRequest, match="members"):
        on.run(store_positions([position(9)], {}))
    with pytest.raises(InvalidRequest, match="members"):
        on.run(take_name("g", "named"))
    assert on.run(read_named()).consumers["g"] == [position(5), position(2, 1)]
    assert second.epoch < told.epoch


def test_a_member_begins_at_the_position_of_its_partition(on):
    told = on.run(groups.join("g", member("1")))
    owner = str(Owner("1", told.epoch, 0))
    on.run(store_positions([position(5)], {"g": owner}))
    found, now = on.run(groups.take_partitions(Consumers(Finisher()), "g", "1", told.assigned))
    assert found == [position(5)]
    assert not any(map(now.is_later, told.assigned))
    with pytest.raises(ConsumerFenced):
        on.run(groups.take_partitions(Consumers(Finisher()), "g", "2", told.assigned))


def test_an_earlier_assignment_of_a_partition_gets_no_position(on):
    earlier = on.run(groups.join("g", member("1"))).assigned
    on.run(groups.beat("g", "1", earlier))  # they are released, and assigned again
    later = on.run(groups.beat("g", "1")).assigned
    assert [each.place for each in later] == [each.place for each in earlier]
    on.run(groups.take_partitions(Consumers(Finisher()), "g", "1", later))
    with pytest.raises(ConsumerFenced):
        on.run(groups.take_partitions(Consumers(Finisher()), "g", "1", earlier))


def reset_positions(place: PositionOf) -> Script[None]:
    """The two calls of a client's reset."""
    yield from Consumers(Finisher()).take("g", "reset", "operator", keeps_group=True)
    yield from store_positions([place], {"g": "reset"})


def test_reset_keeps_the_group_and_waits_for_its_members(on):
    told = on.run(groups.join("g", member("1")))
    on.run(store_positions([position(5)], {"g": str(Owner("1", told.epoch, 0))}))
    with pytest.raises(InvalidRequest, match="members"):
        on.run(reset_positions(position(2)))
    on.run(groups.leave("g", "1"))
    before = group(on)
    on.run(reset_positions(position(2)))
    assert (group(on), on.run(read_named()).consumers["g"]) == (before, [position(2)])
    told = on.run(groups.join("g", member("2")))
    assert on.run(groups.take_partitions(Consumers(Finisher()), "g", "2", told.assigned))[0] == [
        position(2)
    ]


@pytest.mark.parametrize("steps", range(5))
def test_reset_fails_if_a_member_joins_in_between(on, steps):
    told = on.run(groups.join("g", member("1")))
    on.run(store_positions([position(5)], {"g": str(Owner("1", told.epoch, 0))}))
    on.run(groups.leave("g", "1"))
    late = on.start(reset_positions(position(2)))
    for _ in range(steps):
        late.advance()
    told = on.run(groups.join("g", member("2")))
    read, _ = on.run(groups.take_partitions(Consumers(Finisher()), "g", "2", told.assigned))
    with pytest.raises(IsologError) as refused:
        late.end()
    assert refused.type in (ConsumerFenced, InvalidRequest)
    assert on.run(read_named()).consumers["g"] == read == [position(5)]


@pytest.mark.parametrize("steps", range(12))
def test_a_member_whose_session_expired_is_on_record_as_lost(on, steps):
    """Also after its broker stopped between two steps, and after the other members left."""
    for name in "12":
        on.run(groups.join("g", member(name)))
    watch = SessionWatch(groups.session_ms_of)
    removed = []
    for second in range(8):
        on.run(groups.beat("g", "2", renew=True))
        script = groups.end_sessions(watch, lambda now=float(second): now, 1_000 * second)
        if second == 5:  # the session has expired
            on.stops_after(script, steps)
        else:
            removed += on.run(script)
    assert [each.id for each in group(on).members] == ["2"]
    assert removed in ([], [("g", "1")])
    lost = on.run(read_named()).readers["group", "g"]
    assert lost.lost_member == "1"
    on.run(groups.leave("g", "2"))
    ended = on.run(read_named()).readers["group", "g"]
    assert (ended.lost_member, ended.lost_ms) == ("1", lost.lost_ms)
    assert ended.ending is ReaderEnding.CLEAN


def test_a_member_that_leaves_is_not_on_record_as_lost(on):
    for name in "12":
        on.run(groups.join("g", member(name)))
    on.run(groups.leave("g", "1"))
    on.run(groups.leave("g", "2"))
    assert on.run(read_named()).readers["group", "g"].lost_ms is None


def test_a_check_of_sessions_is_one_list(on):
    on.run(groups.join("g", member("1")))
    on.steps.clear()
    on.run(groups.end_sessions(SessionWatch(groups.session_ms_of), lambda: 0.0, 7))
    assert [type(step) for step in on.steps] == [ListRecords]


def test_an_unrecorded_leave_that_fails_blocks_no_other(on, monkeypatch):
    leaves, found = groups.Leaves(), groups.leave
    for name in ("1", "2"):
        on.run(groups.join("g", member(name)))
    on.is_store_away = True
    for name in ("1", "2"):
        with pytest.raises(MetadataUnavailable):
            on.run(leaves.leave("g", name))
    on.is_store_away = False

    def failing(name, member_id, *, hangs=False):
        if member_id == "1":
            raise InternalError("the record cannot be read")
        yield from found(name, member_id, hangs=hangs)

    monkeypatch.setattr(groups, "leave", failing)
    (failed,) = on.run(leaves.retry())
    assert failed[:2] == ("g", "1")
    assert [each.id for each in group(on).members] == ["1"]
    assert on.run(leaves.retry()) == []


def test_an_unrecorded_leave_is_retried(on):
    leaves = groups.Leaves()
    for name in ("1", "2"):
        on.run(groups.join("g", member(name)))
    on.is_store_away = True
    for name in ("1", "2"):
        with pytest.raises(MetadataUnavailable):
            on.run(leaves.leave("g", name))
    with pytest.raises(MetadataUnavailable):
        on.run(leaves.retry())
    on.is_store_away = False
    on.run(leaves.retry())
    assert not group(on).members
    named = on.run(read_named())
    assert named.session("group", "g").ending is ReaderEnding.CLEAN
    on.run(groups.join("g", member("1")))
    on.run(leaves.retry())
    assert [each.id for each in group(on).members] == ["1"]
