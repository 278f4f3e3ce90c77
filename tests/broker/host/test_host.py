"""A broker's replicas follow the records: their number, their leaders, and their moves."""

from __future__ import annotations

import contextlib
import shutil
import threading

import pytest
from msgspec.structs import replace

from isolog.errors import (
    DamagedSegment,
    DiskFull,
    InvalidConfig,
    LeaderUnavailable,
    MetadataUnavailable,
    NotLeader,
    UnknownPartition,
    UnknownTopic,
)
from spark_stream.cluster.partitions import PartitionId, Partitions, put_of
from spark_stream.cluster.topics import TOPICS, encode
from spark_stream.consistency.control.election import begin_move, prefer
from spark_stream.consistency.control.partition_record import PartitionRecord
from spark_stream.consistency.ids import Generation, Offset
from spark_stream.consistency.isolation import Isolation
from spark_stream.consistency.partition.producers import Stamp
from spark_stream.scripts.steps import Numbering, TakeNumber
from tests.broker.clusters import around, make, see
from tests.broker.local_broker import LocalBroker, Surroundings, replicate, to_alter, to_create
from tests.support import NUMBERS, eventually, numbers

__all__ = ["around"]


@pytest.fixture
def pair(around: Surroundings) -> tuple[LocalBroker, LocalBroker]:
    """Brokers a and b of one cluster."""
    a, b = around.start("a"), around.start("b")
    see(around)
    return a, b


def write(asked: LocalBroker, topic: str, record: PartitionRecord, number: int = 0) -> None:
    """Change a partition's record. No broker has seen that yet."""
    stored = asked.host.view_of(PartitionId(asked.host.find(topic).id, number))
    assert stored is not None
    (done,) = asked.store.put_many([put_of(stored.id, record, stored.version)])
    assert done is not None


def hosted(broker: LocalBroker) -> dict[str, list[int]]:
    return {each.topic.name: sorted(each.replicas) for each in broker.host.topics()}


# -- the replicas of a broker ---------------------------------------------------------------------


def test_a_broker_opens_its_replicas_of_a_topic_and_no_others(pair):
    a, b = pair
    make(a, "t", "a", "b", "a")
    make(a, "u", "b")
    assert (hosted(a), hosted(b)) == ({"t": [0, 2]}, {"t": [1], "u": [0]})
    assert a.host.names() == b.host.names() == ["t", "u"]
    assert list(a.path.glob("topics/u*")) == []


def test_leaders_lead_and_followers_follow(pair):
    a, b = pair
    make(a, "t", "ab", "ba")
    assert a.partition("t", 0).leads
    assert b.partition("t", 1).leads
    assert (a.links.followed, b.links.followed) == ({"t/1": ("b", 0)}, {"t/0": ("a", 0)})
    with pytest.raises(NotLeader, match="led by broker b at b:1") as caught:
        a.partition("t", 1)
    assert caught.value.details["epoch"] == 0


@pytest.mark.rule("the open replicas of a broker, and the role of each", "broker/host/host.py")
def test_a_new_leader_leads_and_the_old_one_follows_it(pair):
    a, b = pair
    make(a, "t", "ab")
    a.partition("t").append(numbers(0, 3))
    replicate(a, b, "t")
    record = a.record("t")
    write(a, "t", prefer(replace(record, replicas=("b", "a")), a.members.alive()))
    see(a.around)
    assert a.links.followed == {"t/0": ("b", 1)}
    assert b.links.followed == {}
    assert b.partition("t").append(numbers(3, 1)).offset == 3


def test_a_replica_rests_while_there_is_no_leader(pair):
    a, b = pair
    make(a, "t", "ab")
    write(a, "t", replace(a.record("t"), leader=None))
    see(a.around)
    assert b.links.followed == {}
    for each in (a, b):
        with pytest.raises(LeaderUnavailable, match="has no leader at the moment"):
            each.partition("t")


def test_a_leader_in_another_generation_of_its_logs_does_not_lead(pair):
    """It was elected for an earlier state of its log, and does not serve without the lost part."""
    a, b = pair
    make(a, "t", "ab")
    a.host.change_generation(Generation("a new logs"))
    with pytest.raises(LeaderUnavailable):
        a.partition("t")
    assert b.links.followed == {"t/0": ("a", 0)}


def test_an_older_record_changes_nothing(pair):
    a, _ = pair
    make(a, "t", "ab")
    partition, old = a.partition("t"), a.record("t")
    write(a, "t", prefer(replace(old, replicas=("b", "a")), a.members.alive()))
    see(a.around)
    partition.role.lead(old.isr[0], old, 1)
    assert not partition.leads
    assert partition.leader_epoch == 1


# -- topics and partitions that are created and deleted -----------------------------------------


def test_topics_made_or_deleted_elsewhere_appear_and_disappear_with_a_refresh(pair):
    a, b = pair
    make(a, "t", "b")
    b.partition("t").append(numbers(0, 1))
    assert list(b.path.glob("topics/t/*/0"))
    a.topics.delete("t")
    assert hosted(b) == {"t": [0]}
    replica = b.replica("t")
    b.host.refresh()
    assert hosted(b) == {}
    with pytest.raises(UnknownTopic):
        replica.append(numbers(1, 1))
    b.driver.run(b.topics.removing_left_overs())
    assert list(b.path.glob("topics/t*")) == []


def pending_read(broker: LocalBroker, topic: str) -> threading.Event:
    """An event that is set when a read beyond the first record ends its wait."""
    woken = threading.Event()
    broker.partition(topic).wait_beyond(Offset(0), Isolation.READ_UNCOMMITTED, woken.set)
    return woken


@pytest.mark.parametrize("is_created_again", [False, True])
def test_a_pending_read_of_a_deleted_topic_ends_with_an_error(pair, is_created_again):
    a, b = pair
    make(a, "t", "b")
    topic, replica, woken = b.host.find("t"), b.replica("t"), pending_read(b, "t")
    a.topics.delete("t")
    if is_created_again:
        make(a, "t", "b")
    b.host.refresh()
    assert woken.is_set()
    assert not b.host.is_altered(topic)
    with pytest.raises(UnknownTopic):
        replica.wait_beyond(Offset(0), Isolation.READ_UNCOMMITTED, woken.set)


@pytest.mark.parametrize("has_failed", [False, True])
def test_a_pending_read_of_an_altered_topic_ends(pair, monkeypatch, has_failed):
    """Also if the new partitions cannot get their roles yet."""
    a, b = pair
    make(a, "t", "b")
    topic, woken = b.host.find("t"), pending_read(b, "t")

    def fail(*_: object) -> None:
        raise DiskFull("no space is left on the disk")

    if has_failed:
        monkeypatch.setattr(b.replica("t").role, "trim", fail)
    with contextlib.suppress(DiskFull):
        a.topics.alter(to_alter("t", 2, {}, [["a"]]))
        b.host.refresh()
    assert b.host.is_settled is not has_failed
    assert woken.is_set()
    assert b.host.is_altered(topic)


class CountedLock:
    """A lock with a list of the threads that want it."""

    def __init__(self) -> None:
        self.asked = 0
        self._lock = threading.RLock()

    def __enter__(self) -> None:
        self.asked += 1
        self._lock.acquire()

    def __exit__(self, *_: object) -> None:
        self._lock.release()


def test_files_of_a_topic_without_a_record_stay(pair):
    """The record may be lost, so its deletion is not proved."""
    a, b = pair
    make(a, "t", "b")
    b.partition("t").append(numbers(0, 1))
    replica, record = b.replica("t"), a.store.get(TOPICS + "t")
    a.store.delete(record.key, record.version)
    b.host.refresh()
    with pytest.raises(UnknownTopic, match="the metadata record of topic 't' is missing"):
        replica.append(numbers(1, 1))
    b.driver.run(b.topics.removing_left_overs())
    assert list(b.path.glob("topics/t/*/0/*.arrow"))


@pytest.mark.rule("refreshes shared by callers", "broker/host/host.py")
@pytest.mark.parametrize("fails", [False, True])
def test_concurrent_callers_share_a_refresh_that_begins_after_their_calls(pair, monkeypatch, fails):
    host = pair[0].host
    begun, failed, goes_on, lock = [], [], threading.Event(), CountedLock()
    original = host.view.refresh

    def slow(*, fresh: bool, known: bool):
        begun.append(fresh)
        goes_on.wait(30)
        if fails and fresh:
            raise MetadataUnavailable("no answer")
        return original(fresh=fresh, known=known)

    def refresh():
        try:
            host.refresh()
        except MetadataUnavailable as error:
            failed.append(str(error))

    monkeypatch.setattr(host.view, "refresh", slow)
    monkeypatch.setattr(host, "_applying", lock)
    threads = [threading.Thread(target=refresh) for _ in range(9)]
    threads[0].start()
    eventually(lambda: begun == [True])
    for each in threads[1:]:
        each.start()
    eventually(lambda: lock.asked == 9)
    goes_on.set()
    for each in threads:
        each.join(30)
    assert begun == [True, True], "the first began before the others asked"
    assert failed == ([str(MetadataUnavailable("no answer"))] * 9 if fails else [])
    host.follow_store()
    assert begun == [True, True, False]


def test_a_topic_that_cannot_be_opened_delays_no_other(pair):
    """A later release may have written its record. Each round retries it."""
    a, b = pair
    for name in ("bad", "good"):
        a.topics.create(to_create(name, 1, 1, NUMBERS, {}, [["b"]]))
    record = a.store.get(TOPICS + "bad")
    later = dict(record.value) | {"config": {"of.a.later.release": "1"}}
    version = a.store.put(record.key, later, record.version)
    for _ in range(2):
        with pytest.raises(InvalidConfig):
            b.host.refresh()
    assert hosted(b)["good"] == [0]
    assert b.partition("good").append(numbers(0, 1)).count == 1
    a.store.put(record.key, record.value, version)
    b.host.refresh()
    assert hosted(b) == {"bad": [0], "good": [0]}
    b.host.refresh()


def test_a_recreated_topic_has_no_records_of_the_deleted_one(pair):
    a, b = pair
    make(a, "t", "b")
    old = b.host.topic("t").topic.id
    b.partition("t").append(numbers(0, 5))
    a.topics.delete("t")
    make(a, "t", "b")
    assert b.partition("t").bounds().log_end_offset == 0
    with pytest.raises(UnknownTopic, match="created again"):
        b.host.topic("t", old)
    with pytest.raises(UnknownTopic, match="no topic with the id"):
        b.host.led(old, 0)


def test_added_partitions_open_at_their_brokers(pair):
    a, b = pair
    make(a, "t", "a")
    a.topics.alter(to_alter("t", 3, {}, [["b"], ["a"]]))
    see(a.around)
    assert (hosted(a), hosted(b)) == ({"t": [0, 2]}, {"t": [1]})
    assert b.partition("t", 1).append(numbers(0, 1)).offset == 0


def test_a_partition_just_added_elsewhere_is_found(pair):
    """A client may get its number from another broker, and send a request here."""
    a, b = pair
    make(a, "t", "b")
    asked = b.host.topic("t")
    a.topics.alter(to_alter("t", 2, {}, [["b"]]))
    assert asked.partition(1).leads  # the broker that adds partitions connects to their leaders
    assert b.partition("t", 1).leads
    with pytest.raises(UnknownPartition):
        b.partition("t", 2)


def test_changed_settings_reach_all_replicas(pair):
    a, _ = pair
    make(a, "t", "ab")
    a.topics.alter(to_alter("t", None, {"segment.ms": "777"}))
    see(a.around)
    for each in pair:
        assert each.replica("t").log.format.settings.segment_ms == 777


def test_a_replica_that_moved_away_is_closed_and_removed(pair):
    a, b = pair
    make(a, "t", "ab", "ab")
    for number in (0, 1):
        a.partition("t", number).append(numbers(0, 2))
        replicate(a, b, "t", number)
    write(a, "t", replace(a.record("t"), replicas=("a",), isr=a.record("t").isr[:1]))
    see(a.around)
    assert hosted(b) == {"t": [1]}
    assert sorted(each.name for each in b.path.glob("topics/t/*/*")) == ["1", "1.begun"]
    assert b.links.followed == {"t/1": ("a", 0)}


def test_a_replica_that_moves_here_opens_and_follows(around, pair):
    a, b = pair
    make(a, "t", "a")
    a.partition("t").append(numbers(0, 4))
    write(a, "t", begin_move(a.record("t"), ("b",)))
    see(around)
    assert b.links.followed == {"t/0": ("a", 0)}
    replicate(a, b, "t")
    assert b.replica("t").log.end.offset == 4


def test_a_request_for_an_unknown_partition_is_refused(pair):
    a, _ = pair
    make(a, "t", "ab")
    with pytest.raises(UnknownPartition, match="partitions 0 to 0, not 7"):
        a.partition("t", 7)
    with pytest.raises(UnknownTopic):
        a.host.find("nowhere")


def test_a_topic_just_made_elsewhere_is_found(pair):
    """No caller has to wait for the next round."""
    a, b = pair
    a.topics.create(to_create("t", 1, 1, NUMBERS, {}, [["b"]]))
    assert b.host.find("t").name == "t"
    assert b.partition("t").leads


# -- missing files --------------------------------------------------------------------------------


def lose_folder(broker: LocalBroker, topic: str) -> None:
    """The broker ends, and then the topic's folder is removed."""
    broker.die()
    shutil.rmtree(broker.path / "topics" / topic)


def test_a_missing_folder_is_filled_from_other_replicas(pair):
    a, b = pair
    make(a, "t", "ab")
    a.partition("t").append(numbers(0, 4))
    replicate(a, b, "t")
    lose_folder(b, "t")
    again = a.around.start("b", "b's new logs")
    (doubt,) = again.host.doubts
    assert "is missing, and with it all records of topic 't'" in doubt
    see(a.around)
    assert again.links.followed == {"t/0": ("a", 0)}
    replicate(a, again, "t")
    assert again.replica("t").log.end.offset == 4


def test_a_missing_folder_of_a_replica_outside_the_isr_is_doubted(pair):
    """Its leader may be adding it to the ISR, and count it for the records that it had."""
    a, b = pair
    make(a, "t", "ab")
    a.partition("t").append(numbers(0, 4))
    replicate(a, b, "t")
    record = a.record("t")
    write(a, "t", replace(record, isr=record.isr[:1]))
    lose_folder(b, "t")
    again = a.around.start("b", "b's new logs")
    (doubt,) = again.host.doubts
    assert "is missing, and with it all records of topic 't'" in doubt
    again.die()
    assert not a.around.start("b").host.doubts


def test_a_lost_folder_outside_the_isr_is_filled_by_the_next_start_only(pair):
    a, b = pair
    make(a, "t", "ab")
    record = a.record("t")
    write(a, "t", replace(record, isr=record.isr[:1]))
    see(a.around)
    shutil.rmtree(b.path / "topics" / "t")
    with pytest.raises(DamagedSegment, match="restart the broker"):
        grow(a, "t", "ab")
    b.die()
    assert a.around.start("b", "b's new logs").host.doubts
    see(a.around)
    grow(a, "t", "ab")


@pytest.mark.parametrize("runs", [True, False])
def test_the_folder_of_a_topic_whose_replicas_moved_away_may_be_lost(pair, runs):
    a, b = pair
    make(a, "t", "ab")
    if not runs:
        b.die()
        shutil.rmtree(b.path / "topics" / "t")
    record = a.record("t")
    write(a, "t", replace(record, replicas=("a",), isr=record.isr[:1]))
    if not runs:
        b = a.around.start("b")
    see(a.around)
    if runs:
        shutil.rmtree(b.path / "topics" / "t")
    write(a, "t", replace(a.record("t"), replicas=("a", "b"), adding=("b",)))
    see(a.around)
    assert b.replica("t").log.intact
    shutil.rmtree(b.path / "topics" / "t")
    b.die()
    assert a.around.start("b", "b's new logs").host.doubts  # by a new note


def test_a_removed_topic_leaves_no_note_of_its_folder(pair):
    a, b = pair
    make(a, "t", "ab")
    topic = a.host.find("t")
    note = b.path / "made" / topic.id
    assert note.exists()
    a.topics.delete("t")
    see(a.around)
    b.host.remove_files(topic)
    assert not note.exists()


def test_the_missing_folder_of_a_replica_that_moved_here_is_not_doubted(pair):
    a, b = pair
    make(a, "t", "a")
    b.die()
    write(a, "t", replace(a.record("t"), replicas=("a", "b"), adding=("b",)))
    assert not a.around.start("b").host.doubts


def test_without_the_only_copy_an_unclean_election_takes_another_replica(pair):
    a, b = pair
    make(a, "t", "ba")
    b.partition("t").append(numbers(0, 4))
    replicate(b, a, "t")
    stored = Partitions(a.store).get(PartitionId(a.host.find("t").id, 0))
    assert stored is not None
    alone = replace(stored.record, isr=stored.record.isr[:1])
    assert a.store.put_many([put_of(stored.id, alone, stored.version)])
    lose_folder(b, "t")
    again = a.around.start("b", "b's new logs")
    assert again.host.doubts  # so it begins a new generation, in which it leads no longer
    see(a.around)
    a.control_once()
    with pytest.raises(DamagedSegment) as lost:
        again.partition("t")
    assert "unclean.leader.election=true" in str(lost.value)
    assert a.record("t").leader == "b"
    a.topics.alter(to_alter("t", None, {"unclean.leader.election": "true"}))
    see(a.around)
    a.control_once()
    see(a.around)
    assert a.record("t").leader == "a"
    assert a.partition("t").bounds().log_end_offset == 4


def test_a_missing_folder_with_the_only_copy_is_an_error_until_restored(pair, tmp_path):
    a, b = pair
    make(a, "t", "b")
    b.partition("t").append(numbers(0, 4))
    folder = b.path / "topics" / "t"
    shutil.copytree(folder, tmp_path / "backup")
    lose_folder(b, "t")
    for _ in range(2):  # a start makes no empty folder, which the next start would take for the log
        again = a.around.start("b")
        with pytest.raises(DamagedSegment, match="is missing, and with it all records"):
            again.partition("t")
        again.die()
    shutil.copytree(tmp_path / "backup", folder)
    assert a.around.start("b").partition("t").bounds().log_end_offset == 4


def test_a_removed_folder_is_no_loss_if_its_topic_is_briefly_recreated(pair):
    """The creation was presumed dead and undone. Then it continued, and was undone again."""
    a, b = pair
    make(a, "t", "b")
    topic = a.host.find("t")
    partition, record = PartitionId(topic.id, 0), a.record("t")
    a.topics.delete("t")
    see(a.around)
    b.host.remove_files(topic)
    assert not b.path.joinpath("topics", "t").exists()
    a.store.put_many([put_of(partition, record, 0)])
    a.store.put(TOPICS + "t", encode(topic), 0)
    see(a.around)
    with pytest.raises(UnknownTopic, match="'t'"):
        b.partition("t")


@pytest.mark.rule("the handling of a replica with missing files", "broker/host/hosted_topic.py")
@pytest.mark.parametrize("alone", [0, 1])
def test_a_missing_only_copy_does_not_become_an_empty_log(pair, alone):
    """One folder has all of a topic's replicas: if it is made for one, it exists for all."""
    a, b = pair
    make(a, "t", "ba", "ba")
    record = a.record("t", alone)
    write(a, "t", replace(record, isr=record.isr[:1]), alone)
    see(a.around)
    b.partition("t", alone).append(numbers(0, 4))
    lose_folder(b, "t")
    for _ in range(2):
        again = a.around.start("b", "b's new logs")
        with pytest.raises(DamagedSegment):
            again.partition("t", alone)
        again.die()


def grow(asked: LocalBroker, topic: str, *assignment: str) -> None:
    """Add partitions on these brokers."""
    partitions = asked.host.find(topic).partitions + len(assignment)
    asked.topics.alter(to_alter(topic, partitions, {}, [list(each) for each in assignment]))
    see(asked.around)


@pytest.mark.rule("the handling of a replica with missing files", "broker/host/hosted_topic.py")
@pytest.mark.parametrize("stopped", [True, False])
def test_adding_partitions_does_not_replace_a_lost_folder(pair, stopped):
    """The next start would take a lost log for an empty one."""
    a, b = pair
    make(a, "t", "b")
    b.partition("t").append(numbers(0, 4))
    if stopped:
        lose_folder(b, "t")
        b = a.around.start("b")
        see(a.around)
    else:
        shutil.rmtree(b.path / "topics" / "t")
    with pytest.raises(DamagedSegment, match="is missing, and with it all records"):
        grow(a, "t", "b")
    assert a.host.find("t").partitions == 1
    grow(a, "t", "a")  # at a broker without a loss
    for _ in range(2):
        b.die()
        b = a.around.start("b")
        with pytest.raises(DamagedSegment):
            b.partition("t")


def test_a_moving_replica_does_not_replace_a_lost_folder(pair):
    a, b = pair
    make(a, "t", "b", "a")
    b.partition("t").append(numbers(0, 4))
    lose_folder(b, "t")
    b = a.around.start("b")
    record = a.record("t", 1)
    write(a, "t", replace(record, replicas=("a", "b"), adding=("b",)), 1)
    see(a.around)
    assert isinstance(b.replica("t", 1), DamagedSegment)
    b.die()
    b = a.around.start("b")
    with pytest.raises(DamagedSegment):
        b.partition("t")


def test_a_folder_lost_at_run_time_is_filled_by_the_next_start(pair):
    a, b = pair
    make(a, "t", "ab")
    a.partition("t").append(numbers(0, 4))
    replicate(a, b, "t")
    shutil.rmtree(b.path / "topics" / "t")
    with pytest.raises(DamagedSegment, match="restart the broker"):
        grow(a, "t", "ab")
    b.die()
    b = a.around.start("b", "b's new logs")
    assert b.host.doubts
    see(a.around)
    replicate(a, b, "t")
    grow(a, "t", "ab")
    assert b.replica("t", 1) is not None
    assert b.replica("t").log.end.offset == 4


@pytest.mark.rule(
    "producer ids after the store was replaced by an older one", "cluster/transactions.py"
)
def test_producer_ids_begin_above_those_in_the_logs(pair):
    a, _ = pair
    make(a, "t", "a")
    a.partition("t").append(numbers(0, 1), Stamp(7_000, 0, 0))
    a.partition("t").append(numbers(1, 1), Stamp((1 << 62) + 1, 0, 0))  # no broker allocates it
    assert a.table.carry_out(TakeNumber(Numbering.PRODUCERS)) == 7_001
