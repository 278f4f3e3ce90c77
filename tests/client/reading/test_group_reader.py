"""Members of a group share topics: one member reads each record, or its successor."""

from __future__ import annotations

import itertools
import math
import re
import threading
import uuid
from collections import Counter
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any

import pytest

from isolog.errors import BrokerUnavailable, ConsumerFenced, InvalidOption, InvalidRequest
from spark_stream.client.groups import Membership, MembershipCore
from spark_stream.client.reading import group_reader
from spark_stream.client.reading.consumer import Consumer
from spark_stream.client.reading.group_reader import GroupOptions, GroupReader
from spark_stream.consistency.groups import Assigned, MemberAnswer
from spark_stream.consistency.isolation import Isolation
from spark_stream.consistency.transactions.transactions import PositionOf
from spark_stream.wire.consumer_messages import (
    GetPosition,
    GroupHeartbeat,
    JoinGroup,
    TakenPartitions,
    TakePartitions,
)
from spark_stream.wire.messages import Call, Message
from tests.support import eventually, values

SLOW = pytest.mark.slow  # uses a broker
PARTITIONS = 4


@pytest.fixture
def group() -> str:
    return f"group-{uuid.uuid4()}"


def fill(log, topic: str, count: int = 10, partitions: int = PARTITIONS) -> None:
    if topic not in log.topics():
        log.create_topic(topic, partitions=partitions)
    with log.producer() as producer:
        for number in range(partitions):
            producer.append(topic, values(*[f"{number}-{n}" for n in range(count)]), number)


def stored(log, group: str) -> dict[tuple[str, int], int]:
    return {
        (each.topic, each.partition): each.offset
        for each in log._connection.call(GetPosition(consumer=group)).positions
    }


@pytest.fixture(autouse=True)
def no_deadline(monkeypatch: pytest.MonkeyPatch) -> None:
    """Disable timed commits, and give due ones a long timeout, for a busy machine."""
    monkeypatch.setattr(group_reader, "COMMIT_S", math.inf)
    monkeypatch.setattr(group_reader, "_STORE_S", 60.0)


def rest(consumer: Consumer) -> list[str]:
    """Return the values up to the present ends of the consumer's partitions."""
    return [each.value.decode() for each in consumer.records(until="latest")]


def polled(consumer: Consumer, wait: float = 0.0) -> list[str]:
    """Return the values until none arrives for this number of seconds."""
    return [each.value.decode() for each in consumer.records(timeout=wait)]


def numbers(consumer: Consumer) -> set[int]:
    return {number for _, number in consumer.position()}


def fails_once(monkeypatch: pytest.MonkeyPatch, where: type, name: str) -> None:
    """Make the next call of a method fail as if no broker answered."""
    method = getattr(where, name)

    def fail(*_: object) -> None:
        monkeypatch.setattr(where, name, method)
        raise BrokerUnavailable("no broker answers")

    monkeypatch.setattr(where, name, fail)


def rebalanced(*consumers: Consumer) -> list[str]:
    """Return the members' values until each has its expected number of partitions."""
    found: list[str] = []

    def is_even() -> bool:
        for each in consumers:
            found.extend(polled(each))
        counts = [len(numbers(each)) for each in consumers]
        return sum(counts) == PARTITIONS and max(counts) - min(counts) <= 1

    eventually(is_even)
    return found


# -- the core --------------------------------------------------------------------------------------


def partition(number: int, epoch: int = 1) -> Assigned:
    return Assigned("t", "id", number, epoch)


def test_a_member_reads_assigned_and_releases_revoked_partitions():
    core = MembershipCore("m")
    core.on_answer(1, [partition(0), partition(1)], [])
    assert core.changes().added == [partition(0), partition(1)]
    core.take(core.changes().added)
    assert not core.has_changes
    core.on_answer(2, [partition(0), partition(1)], [partition(1)])
    assert core.changes().revoked == [partition(1)]
    core.release([partition(1)])
    assert core.released == [partition(1)]
    assert not core.has_changes
    core.on_answer(3, [partition(0)], [])
    assert core.released == []
    assert set(core.reads) == {("id", 0)}


def test_an_outdated_answer_is_ignored():
    core = MembershipCore("m")
    core.on_answer(3, [partition(0)], [])
    core.on_answer(2, [], [])
    assert core.changes().added == [partition(0)]


def test_a_partition_revoked_before_its_first_read_is_released():
    core = MembershipCore("m")
    core.on_answer(1, [partition(0)], [partition(0)])
    assert core.has_changes
    assert core.changes() == ([], [], [])
    assert core.released == [partition(0)]
    assert not core.has_changes


def test_a_partition_assigned_in_a_new_epoch_is_lost_first():
    core = MembershipCore("m")
    core.on_answer(1, [partition(0)], [])
    core.take([partition(0)])
    core.on_answer(4, [partition(0, 4)], [])
    assert core.changes().lost == [partition(0)]
    core.give_up([partition(0)])
    assert core.changes().added == [partition(0, 4)]


def test_a_late_heartbeat_does_not_release_a_reassigned_partition():
    core = MembershipCore("m")
    core.on_answer(1, [partition(0)], [partition(0)])
    core.changes()
    core.on_answer(3, [partition(0, 3)], [])
    assert core.released == []
    assert core.changes().added == [partition(0, 3)]


# -- a member without a broker ---------------------------------------------------------------------


class Answers:
    """A connection with prepared answers."""

    timeout_s = 1.0

    def __init__(self) -> None:
        self.on_beat: Callable[[], MemberAnswer] = lambda: answer(1)
        self.joins = answer(1)

    def call(self, asked: Call[Any], *_: object) -> Message:
        if isinstance(asked, JoinGroup):
            return self.joins
        if isinstance(asked, GroupHeartbeat):
            return self.on_beat()
        assert isinstance(asked, TakePartitions)
        positions = [PositionOf("g", "t", "id", each.partition, 0) for each in asked.assigned]
        return TakenPartitions(positions=positions, added=[])


def answer(epoch: int, *assigned: Assigned) -> MemberAnswer:
    return MemberAnswer(epoch=epoch, assigned=list(assigned), revoked=[])


@pytest.fixture
def no_timer(monkeypatch: pytest.MonkeyPatch) -> None:
    """A membership whose heartbeats are sent by the test."""
    monkeypatch.setattr(Membership, "_beat_later", lambda _: None)


@pytest.mark.usefixtures("no_timer")
def test_a_late_rejection_of_the_earlier_member_does_not_fence_the_new_one():
    connection: Any = Answers()
    membership = Membership(connection, "g", Isolation.READ_UNCOMMITTED, 45.0, 300.0)
    membership.join(["t"])

    def rejected_after_join() -> MemberAnswer:
        membership.join(["t"])
        raise ConsumerFenced("this is no member of the group 'g'")

    connection.on_beat = rejected_after_join
    membership._beat()
    assert not membership.is_fenced
    earlier = membership._core

    def rejected() -> MemberAnswer:
        raise ConsumerFenced("this is no member of the group 'g'")

    connection.on_beat = rejected
    membership._beat()
    assert membership.is_fenced
    assert membership._core is earlier


@pytest.mark.usefixtures("no_timer")
def test_commit_fails_once_after_a_loss_of_unstored_work_that_a_clean_loss_follows():
    connection: Any = Answers()
    connection.joins = answer(1, partition(0), partition(1))
    subscription: Any = SimpleNamespace(ids={"t": "id"})
    position: dict[tuple[str, int], int] = {}
    options = GroupOptions("g", auto_commit=False)
    nothing: Any = None
    reader = group_reader.GroupReader(
        options,
        connection,
        nothing,
        subscription,
        Isolation.READ_UNCOMMITTED,
        "earliest",
        position,
        {},
    )
    reader.apply()
    assert position == {("t", 0): 0, ("t", 1): 0}
    position["t", 0] = 5  # five records are processed, without a stored position
    for still_assigned in ([partition(1)], []):
        connection.on_beat = lambda still=still_assigned: answer(3 - len(still), *still)
        reader.membership._beat()
        reader.apply()
    assert position == {}
    with pytest.raises(ConsumerFenced, match="assigned to another member"):
        reader.places()
    assert reader.places() == []


# -- options ---------------------------------------------------------------------------------------


@SLOW
@pytest.mark.parametrize(
    ("options", "option"),
    [
        ({"group": ""}, "group"),
        ({"group": 7}, "group"),
        ({"session_timeout": 0.5}, "session_timeout"),
        ({"processing_timeout": "5m"}, "processing_timeout"),
        ({"name": "n"}, "name"),
        ({"partitions": [0]}, "partitions"),
        ({"isolation": "read_atomic"}, "isolation"),
        ({"start": "somewhere"}, None),
    ],
)
def test_options_that_conflict_with_group_are_refused(log, topic, group, options, option):
    fill(log, topic, 1)
    with pytest.raises(InvalidOption) as refused:
        log.consumer(topic, **{"group": group, **options})
    assert option in (None, refused.value.details.get("option"))
    assert stored(log, group) == {}


# -- members ---------------------------------------------------------------------------------------


@SLOW
def test_a_single_member_reads_all_partitions_and_its_successor_continues(log, topic, group):
    fill(log, topic)
    with log.consumer(topic, group=group) as consumer:
        assert consumer.group == group
        found = rest(consumer)
        assert len(set(found)) == len(found) == 40
    assert stored(log, group) == {(topic, number): 10 for number in range(PARTITIONS)}
    fill(log, topic, 1)
    with log.consumer(topic, group=group) as consumer:
        assert sorted(rest(consumer)) == [f"{number}-0" for number in range(PARTITIONS)]


@SLOW
def test_partitions_are_spread_over_members_and_each_record_is_read_once(log, topic, group):
    told: list[tuple[str, list[tuple[str, int]]]] = []
    fill(log, topic)
    with (
        log.consumer(
            topic,
            group=group,
            on_assigned=lambda keys: told.append(("assigned", keys)),
            on_revoked=lambda keys: told.append(("revoked", keys)),
        ) as first,
    ):
        found = [next(first.records()).value.decode()]
        assert numbers(first) == {0, 1, 2, 3}
        with log.consumer(topic, group=group) as second:
            found += rebalanced(first, second)
            assert numbers(first).isdisjoint(numbers(second))
            assert told[0] == ("assigned", [(topic, number) for number in range(4)])
            assert told[1][0] == "revoked"
            assert len(told[1][1]) == 2
            fill(log, topic, 5)
            found += rest(first) + rest(second)
        found += rebalanced(first)
        fill(log, topic, 1)
        found += rest(first)
    assert Counter(found) == Counter(
        f"{number}-{n}" for number in range(4) for count in (10, 5, 1) for n in range(count)
    )


@SLOW
def test_the_last_delivered_record_is_read_again_after_an_error(log, topic, group):
    fill(log, topic, 3, partitions=1)

    def fails() -> None:
        with log.consumer(topic, group=group) as consumer:
            for record in consumer.records():
                if record.offset == 1:
                    raise ValueError(record)

    with pytest.raises(ValueError, match="0-1"):
        fails()
    assert stored(log, group) == {(topic, 0): 1}
    with log.consumer(topic, group=group) as consumer:
        assert [each.offset for each in consumer.poll(60.0, max_records=2)] == [1, 2]
        consumer.close()  # a close without the end of the block does not count as processed
    assert stored(log, group) == {(topic, 0): 1}
    with log.consumer(topic, group=group) as consumer:
        batches = consumer.batches()
        assert next(batches).num_rows == 2
        consumer.commit()
    assert stored(log, group) == {(topic, 0): 3}


@SLOW
def test_auto_commit_stores_positions_every_few_seconds(log, topic, group, monkeypatch):
    monkeypatch.setattr(group_reader, "COMMIT_S", 0.05)
    fill(log, topic, 3, partitions=1)
    with log.consumer(topic, group=group) as consumer:
        eventually(lambda: consumer.poll(0.1) or stored(log, group) == {(topic, 0): 3})
        eventually(lambda: not consumer.poll(0.1) and stored(log, group) == {(topic, 0): 3})


@SLOW
@pytest.mark.full
def test_without_auto_commit_a_partition_is_released_after_its_commit(log, topic, group):
    fill(log, topic)
    with log.consumer(topic, group=group, auto_commit=False) as first:
        rest(first)
        assert set(stored(log, group).values()) == {0}
        with log.consumer(topic, group=group) as second:
            for _ in range(8):
                assert polled(first, 0.1) + polled(second, 0.1) == []
            assert numbers(first) == {0, 1, 2, 3}
            first.commit()
            assert rebalanced(first, second) == []
        rest(first)
    assert stored(log, group) == {(topic, number): 10 for number in range(4)}


@SLOW
def test_a_new_group_begins_at_start_and_later_partitions_at_their_first_record(log, topic, group):
    fill(log, topic, 3, partitions=2)
    with log.consumer(topic, group=group, start="latest") as consumer:
        assert rest(consumer) == []
        assert stored(log, group) == {(topic, 0): 3, (topic, 1): 3}
    fill(log, topic, 1, partitions=2)
    log.alter_topic(topic, partitions=3)
    fill(log, topic, 1, partitions=3)
    with log.consumer(topic, group=group, start="latest") as consumer:
        assert Counter(rest(consumer)) == {"0-0": 2, "1-0": 2, "2-0": 1}


@SLOW
def test_partitions_and_topics_that_are_added_are_shared_too(log, topic, group):
    fill(log, topic, 1, partitions=1)
    pattern = re.compile(re.escape(topic) + ".*")
    with log.consumer(pattern, group=group, start="latest") as consumer:
        assert rest(consumer) == []
        log.alter_topic(topic, partitions=2)
        fill(log, f"{topic}-more", 2, partitions=1)
        fill(log, topic, 1, partitions=2)
        found: list[str] = []
        eventually(lambda: len(found.extend(polled(consumer, 0.5)) or found) == 4)
    assert sorted(found) == ["0-0", "0-0", "0-1", "1-0"]


@SLOW
def test_a_new_topic_is_read_after_a_failed_join(log, topic, group, monkeypatch):
    fill(log, topic, 1, partitions=1)
    pattern = re.compile(re.escape(topic) + ".*")
    with log.consumer(pattern, group=group) as consumer:
        assert rest(consumer) == ["0-0"]
        fails_once(monkeypatch, Membership, "_send_join")
        fill(log, f"{topic}-more", 1, partitions=1)
        with pytest.raises(BrokerUnavailable):
            eventually(lambda: consumer.poll(0.1))
        assert eventually(lambda: consumer.poll(0.1))[0].topic == f"{topic}-more"


@SLOW
def test_a_topic_that_matches_later_starts_no_second_chain_of_heartbeats(log, topic, group):
    pattern = re.compile(re.escape(topic) + ".*")
    with log.consumer(pattern, group=group) as consumer:
        begun: list[None] = []
        consumer._member.membership._beat_later = lambda: begun.append(None)
        consumer._member.membership.join([])
        assert begun == []


@SLOW
def test_seek_committed_without_a_stored_position_returns_to_the_start(
    log, topic, group, monkeypatch
):
    fill(log, topic, 5, partitions=1)
    fails_once(monkeypatch, GroupReader, "store")
    with log.consumer(topic, group=group, start="latest", auto_commit=False) as consumer:
        assert rest(consumer) == []
        fill(log, topic, 2, partitions=1)
        assert len(rest(consumer)) == 2
        consumer.seek("committed")
        assert consumer.position() == {(topic, 0): 5}


@SLOW
def test_a_new_topic_does_not_rejoin_a_removed_member(log, topic, group):
    fill(log, topic, 1, partitions=1)
    with log.consumer(topic, group=group) as consumer:
        rest(consumer)
        membership = consumer._member.membership
        membership.leave()
        membership.read_also([topic, "another"])
        [found] = log.describe_consumer(group)
        assert found.group is not None
        assert found.group.members == ()


@SLOW
def test_partitions_are_revoked_before_a_member_leaves(log, topic, group):
    fill(log, topic, 2, partitions=1)
    revoked: list[tuple[list[tuple[str, int]], dict[tuple[str, int], int]]] = []

    def note(keys: list[tuple[str, int]]) -> None:
        revoked.append((keys, stored(log, group)))

    with log.consumer(topic, group=group, on_revoked=note) as consumer:
        assert len(rest(consumer)) == 2
    assert revoked == [([(topic, 0)], {(topic, 0): 0})]  # positions are stored afterwards
    assert stored(log, group) == {(topic, 0): 2}


@SLOW
def test_a_seek_moves_the_stored_position_back(log, topic, group):
    fill(log, topic, 5, partitions=1)
    with log.consumer(topic, group=group) as consumer:
        rest(consumer)
        consumer.commit()
        consumer.seek({(topic, 0): 2})
        consumer.commit()
        assert stored(log, group) == {(topic, 0): 2}
        next(consumer.records())
        consumer.seek("committed")
        assert consumer.position() == {(topic, 0): 2}


@SLOW
def test_seek_before_the_first_poll_moves_the_group_back(log, topic, group):
    fill(log, topic, 5)
    with log.consumer(topic, group=group) as consumer:
        rest(consumer)
    with log.consumer(topic, group=group) as consumer:
        consumer.seek("earliest")
        consumer.commit()
        assert consumer.position() == dict.fromkeys(stored(log, group), 0)
    assert stored(log, group) == {(topic, number): 0 for number in range(PARTITIONS)}


@SLOW
def test_seek_of_a_member_without_partitions_fails_with_the_remedy(log, topic, group):
    fill(log, topic, 1, partitions=1)
    with log.consumer(topic, group=group) as first:
        rest(first)
        with log.consumer(topic, group=group) as second:
            with pytest.raises(InvalidRequest, match="no partition is assigned") as refused:
                second.seek("earliest")
            assert "on_assigned" in refused.value.hint
            second.seek("committed")  # as a program does after each aborted transaction
            assert second.position() == {}


@SLOW
def test_members_seek_within_on_assigned(log, topic, group):
    fill(log, topic, 3, partitions=1)
    with log.consumer(topic, group=group) as consumer:
        rest(consumer)
    consumer = log.consumer(
        topic, group=group, on_assigned=lambda _: consumer.seek({(topic, 0): 2})
    )
    with consumer:
        assert rest(consumer) == ["0-2"]


@SLOW
def test_seek_takes_a_time_in_a_group(log, topic, group):
    fill(log, topic, 0, partitions=2)
    with log.producer() as producer:
        for number, second in itertools.product(range(2), range(4)):
            moment = datetime(2024, 5, 1, 0, 0, second, tzinfo=UTC)
            producer.send(topic, str(second), partition=number, timestamp=moment)
    with log.consumer(topic, group=group) as consumer:
        consumer.seek(datetime(2024, 5, 1, 0, 0, 1))
        consumer.commit()
        assert stored(log, group) == {(topic, 0): 1, (topic, 1): 1}
        consumer.seek({(topic, 0): datetime(2024, 5, 1, 0, 0, 3), (topic, 1): 2})
        assert consumer.position() == {(topic, 0): 3, (topic, 1): 2}
        consumer.seek({(topic, 0): datetime(2025, 1, 1)})  # after the last record: the end
        assert consumer.position()[topic, 0] == 4


@SLOW
@pytest.mark.rule(
    "membership of a consumer group: sessions and rebalances",
    "scripts/groups.py",
    "client/groups.py",
)
def test_a_silent_member_is_removed_and_fenced(log, topic, group):
    """Its heartbeats stop, as in a stopped process, and then it is fenced."""
    fill(log, topic, 3)
    with log.consumer(topic, group=group, session_timeout=5.0, auto_commit=False) as silent:
        assert len(rest(silent)) == 12
        silent._member.membership._is_over = True
        with log.consumer(topic, group=group, auto_commit=False) as other:
            found: list[str] = []
            eventually(lambda: len(found.extend(polled(other, 0.1)) or found) == 12)
            with pytest.raises(ConsumerFenced, match="no longer assigned"):
                silent.commit()
            other.commit()
            assert stored(log, group) == {(topic, number): 3 for number in range(4)}
            [found_group] = log.describe_consumer(group)
            assert found_group.lost_member
            assert found_group.lost_ms is not None


@SLOW
@pytest.mark.full
def test_an_idle_member_leaves_and_rejoins(log, topic, group):
    fill(log, topic, 3)
    with log.consumer(topic, group=group, processing_timeout=1.0) as slow:
        records = slow.records(timeout=0.5)
        seen = [next(records)]
        eventually(lambda: slow._member.membership.is_fenced)
        with log.consumer(topic, group=group) as other:
            assert len(rest(other)) == 12  # records of the slow member are processed again
        seen += list(records)
    assert len(seen) == 1


@SLOW
def test_a_closed_member_has_left_the_group_and_refuses_calls(log, topic, group):
    fill(log, topic, 1)
    consumer = log.consumer(topic, group=group)
    rest(consumer)
    consumer.close()
    consumer.close()
    with pytest.raises(InvalidRequest, match="closed"):
        consumer.commit()
    [found] = log.describe_consumer(group)
    assert found.group is not None
    assert found.group.members == ()


# -- names and groups ------------------------------------------------------------------------------


@SLOW
@pytest.mark.full
def test_a_group_continues_at_the_position_of_a_named_consumer(log, topic, group):
    fill(log, topic, 5, partitions=1)
    with log.consumer(topic, name=group, start=2) as named:
        named.commit()
        with log.consumer(topic, group=group) as member:
            assert rest(member) == ["0-2", "0-3", "0-4"]
            with pytest.raises(ConsumerFenced):
                named.commit()
            with pytest.raises(InvalidRequest, match="is a consumer group with members"):
                log.consumer(topic, name=group)
    with log.consumer(topic, name=group) as named:
        assert named.position() == {(topic, 0): 5}


@SLOW
@pytest.mark.full
def test_a_group_is_listed_with_its_members_and_lag(log, topic, group):
    fill(log, topic, 5)
    with (
        log.consumer(topic, group=group, isolation="read_committed") as first,
        log.consumer(topic, group=group, isolation="read_committed") as second,
    ):
        rebalanced(first, second)
        for each in (first, second):
            rest(each)
            each.commit()
        fill(log, topic, 2)
        [found] = [each for each in log.consumers() if each.name == group]
    assert (found.kind, found.isolation, found.lag) == ("client", "read_committed", 8)
    assert found.group is not None
    assert [each.partitions for each in found.group.members] == [2, 2]
    members = {each.id for each in found.group.members}
    assert {each.member for each in found.partitions} == members
    log.delete_consumer(group)
    assert group not in [each.name for each in log.consumers()]


# -- transactions ----------------------------------------------------------------------------------


def copy(log, group: str, topic: str, stop: threading.Event, life: int) -> None:
    """Copy in transactions until the stop event."""
    with (
        log.producer(transactional_id=f"{group}-{life}") as producer,
        log.consumer(topic, group=group, auto_commit=False, isolation="read_committed") as consumer,
    ):
        while not stop.is_set():
            records = consumer.poll(0.1, max_records=3)
            if not records:
                continue
            try:
                with producer.transaction():
                    for each in records:
                        producer.send(f"{topic}-copy", each.value)
                    producer.commit_position(consumer)
            except ConsumerFenced:
                consumer.seek("committed")


@pytest.mark.full  # simulated: tests/simulation/test_simulator.py
@SLOW
def test_a_group_copies_every_record_once_through_rebalances(log, topic, group):
    fill(log, topic, 40)
    log.create_topic(f"{topic}-copy")
    stops: list[threading.Event] = []
    threads: list[threading.Thread] = []

    def begin() -> None:
        stops.append(threading.Event())
        threads.append(
            threading.Thread(target=copy, args=(log, group, topic, stops[-1], len(stops)))
        )
        threads[-1].start()

    def copied() -> Iterator[str]:
        table = log.read(f"{topic}-copy", isolation="read_committed", columns=["value"])
        return iter(each.decode() for each in table.column(0).to_pylist())

    try:
        begin()
        begin()
        eventually(lambda: len(list(copied())) >= 30)
        begin()
        stops[0].set()
        eventually(lambda: len(list(copied())) >= 60)
        begin()
        stops[1].set()
        eventually(lambda: len(list(copied())) >= 160, timeout_s=60)
    finally:
        for each in stops:
            each.set()
        for thread in threads:
            thread.join()
    wanted = (f"{number}-{n}" for number, n in itertools.product(range(PARTITIONS), range(40)))
    assert Counter(copied()) == Counter(wanted)


@SLOW
def test_a_transaction_refuses_the_position_of_a_member_with_auto_commit(log, topic, group):
    fill(log, topic, 1)
    with (
        log.producer(transactional_id=group) as producer,
        log.consumer(topic, group=group) as consumer,
        producer.transaction(),
        pytest.raises(InvalidOption, match="stores positions automatically"),
    ):
        producer.commit_position(consumer)
