"""A broker that starts again has its high watermarks, even if no other replica is alive."""

from __future__ import annotations

from threading import Thread

import pytest

from isolog.errors import StorageFailure
from spark_stream.consistency.ids import EntryIndex, LeaderEpoch
from spark_stream.consistency.isolation import Isolation
from spark_stream.storage.disk.disk import OsDisk
from spark_stream.storage.log.high_watermarks import NAME, CommittedMarks, Mark
from tests.broker.clusters import around, make, see
from tests.broker.local_broker import LocalBroker, Surroundings, replicate
from tests.storage.disks import FailingDisk
from tests.support import numbers

__all__ = ["around"]


def three(around: Surroundings) -> list[LocalBroker]:
    """A topic of three replicas, of which two must be in sync, with three committed records."""
    brokers = [around.start(each) for each in "abc"]
    a = brokers[0]
    make(a, "t", "abc", **{"min.insync.replicas": "2"})
    a.partition("t").append(numbers(0, 3))
    for _ in range(2):  # the second time they get the high watermark too
        for follower in brokers[1:]:
            replicate(a, follower, "t")
    return brokers


def test_one_restarted_broker_of_three_serves_committed_records(around):
    brokers = three(around)
    for each in brokers:
        each.host.upkeep.housekeep()
    for each in brokers:
        each.die()
    b = around.start("b")
    b.control_once()
    see(around)
    partition = b.partition("t")
    partition.check_hw_known()
    for level in Isolation:
        assert partition.bounds(level).high_watermark == 3
    assert partition.bounds().last_stable_offset == 3


def test_an_orderly_end_stores_the_high_watermark(around):
    brokers = three(around)
    brokers[1].end()
    marks = CommittedMarks(brokers[1].path)
    topic = brokers[0].host.find("t").id
    assert marks.recall(f"{topic}/0") == Mark(EntryIndex(1), LeaderEpoch(0))


@pytest.mark.rule(
    "the high watermark of an earlier process",
    "consistency/partition/replica.py",
    "storage/log/high_watermarks.py",
)
def test_a_stored_high_watermark_needs_the_entry_of_its_epoch(around):
    """It may be of a log that was truncated, and has other entries since."""
    a = three(around)[0]
    topic = a.host.find("t").id
    for wrong in ((2, 0), (1, 7), (0, 0)):
        a.die()
        marks = CommittedMarks(a.path)
        marks.note(f"{topic}/0", Mark(EntryIndex(wrong[0]), LeaderEpoch(wrong[1])))
        marks.write(forced=True)
        a = around.start("a")
        assert a.replica("t").bounds().high_watermark == 0


def test_a_damaged_file_of_high_watermarks_is_ignored(tmp_path, caplog):
    marks = CommittedMarks(tmp_path)
    marks.note("t/0", Mark(EntryIndex(9), LeaderEpoch(2)))
    marks.write(forced=False)
    assert CommittedMarks(tmp_path).recall("t/0") == (9, 2)
    path = tmp_path / NAME
    path.write_bytes(path.read_bytes().replace(b"[9,", b"[8,"))
    assert CommittedMarks(tmp_path).recall("t/0") is None
    assert "ignoring unreadable high watermarks" in caplog.text


def mark(tmp_path, *keys):
    marks = CommittedMarks(tmp_path)
    for key in keys:
        marks.note(key, Mark(EntryIndex(9), LeaderEpoch(2)))
    marks.write(forced=True)


def test_the_high_watermark_of_a_partition_that_failed_to_open_stays_stored(tmp_path):
    mark(tmp_path, "t/0")
    mark(tmp_path, "new/0")
    assert CommittedMarks(tmp_path).recall("t/0") == (9, 2)


def test_dropped_high_watermarks_leave_the_file(tmp_path):
    mark(tmp_path, "t/0", "t/1", "gone/0")
    marks = CommittedMarks(tmp_path)
    marks.forget("t/1")
    marks.keep_topics({"t"})
    marks.write(forced=True)
    there = CommittedMarks(tmp_path)
    assert [there.recall(each) is None for each in ("t/0", "t/1", "gone/0")] == [False, True, True]


@pytest.mark.parametrize(
    ("forced", "refused"),
    [(True, "write"), (True, "sync_directory"), (False, "create"), (False, "rename")],
)
def test_a_failed_write_of_high_watermarks_is_retried(tmp_path, forced, refused):
    disk = FailingDisk()
    marks = CommittedMarks(tmp_path, disk)
    marks.note("t/0", Mark(EntryIndex(3), LeaderEpoch(1)))
    marks.note("gone/0", Mark(EntryIndex(3), LeaderEpoch(1)))
    marks.write(forced=forced)
    marks.note("t/0", Mark(EntryIndex(9), LeaderEpoch(2)))
    marks.keep_topics({"t"})
    disk.refused = refused
    with pytest.raises(StorageFailure):
        marks.write(forced=forced)
    disk.refused = None
    (tmp_path / NAME).unlink()  # left by the failed write
    marks.write(forced=forced)
    found = CommittedMarks(tmp_path)
    assert (found.recall("t/0"), found.recall("gone/0")) == ((9, 2), None)


def test_a_high_watermark_noted_during_a_write_is_written_next(tmp_path):
    class Slow(OsDisk):
        def write_whole(self, path, parts):
            if not noting.is_alive() and noting.ident is None:
                noting.start()
                noting.join(0.1)  # unless something delays it, it has ended
            super().write_whole(path, parts)

    marks = CommittedMarks(tmp_path, Slow())
    noting = Thread(target=marks.note, args=("t/1", Mark(EntryIndex(1), LeaderEpoch(0))))
    marks.note("t/0", Mark(EntryIndex(1), LeaderEpoch(0)))
    marks.write(forced=True)
    noting.join()
    marks.write(forced=True)
    assert CommittedMarks(tmp_path).recall("t/1") == (1, 0)


def test_the_high_watermarks_of_a_deleted_topic_are_dropped(around):
    a = three(around)[0]
    a.host.upkeep.housekeep()
    topic = a.host.find("t").id
    a.topics.delete("t")
    a.host.refresh()
    a.host.upkeep.housekeep()
    assert CommittedMarks(a.path).recall(f"{topic}/0") is None
