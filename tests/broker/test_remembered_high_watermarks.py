"""A broker that starts again knows what was committed, though no other replica is back."""

from __future__ import annotations

from spark_stream.consistency.ids import EntryIndex, LeaderEpoch
from spark_stream.consistency.isolation import Isolation
from spark_stream.storage.committed import NAME, CommittedMarks, Mark
from tests.broker.clusters import around, make, see
from tests.broker.local_broker import LocalBroker, Surroundings, replicate
from tests.support import numbers

__all__ = ["around"]


def three(around: Surroundings) -> list[LocalBroker]:
    """A topic of three replicas, of which two must be in sync, with three committed records."""
    brokers = [around.start(each) for each in "abc"]
    a = brokers[0]
    make(a, "t", "abc", **{"min.insync.replicas": "2"})
    a.partition("t").append(numbers(0, 3))
    for _ in range(2):  # the second time tells them that the others have it too
        for follower in brokers[1:]:
            replicate(a, follower, "t")
    return brokers


def test_of_three_brokers_that_died_one_is_back_and_committed_records_are_readable(around):
    brokers = three(around)
    for each in brokers:
        each.host.upkeep.housekeep()
    for each in brokers:
        each.die()
    b = around.start("b")
    b.control()
    see(around)
    partition = b.partition("t")
    partition.check_hw_known()
    for level in Isolation:
        assert partition.bounds(level).high_watermark == 3
    assert partition.bounds().last_stable_offset == 3


def test_a_high_watermark_is_remembered_at_the_end_in_order(around):
    brokers = three(around)
    brokers[1].end()
    marks = CommittedMarks(brokers[1].path)
    topic = brokers[0].host.find("t").id
    assert marks.recall(f"{topic}/0") == Mark(EntryIndex(1), LeaderEpoch(0))


def test_a_mark_is_believed_only_by_a_log_that_has_the_entry_of_that_epoch(around):
    """It may be of a log that was cut back, and has got other entries since."""
    a = three(around)[0]
    topic = a.host.find("t").id
    for wrong in ((2, 0), (1, 7), (0, 0)):
        a.die()
        marks = CommittedMarks(a.path)
        marks.note(f"{topic}/0", Mark(EntryIndex(wrong[0]), LeaderEpoch(wrong[1])))
        marks.write(forced=True)
        a = around.start("a")
        assert a.replica("t").bounds().high_watermark == 0


def test_a_damaged_file_is_not_believed(tmp_path, caplog):
    marks = CommittedMarks(tmp_path)
    marks.note("t/0", Mark(EntryIndex(9), LeaderEpoch(2)))
    marks.write(forced=False)
    assert CommittedMarks(tmp_path).recall("t/0") == (9, 2)
    path = tmp_path / NAME
    path.write_bytes(path.read_bytes().replace(b"[9,", b"[8,"))
    assert CommittedMarks(tmp_path).recall("t/0") is None
    assert "is not believed" in caplog.text


def test_marks_of_partitions_that_are_not_here_any_more_are_dropped(tmp_path):
    first = CommittedMarks(tmp_path)
    first.note("old/0", Mark(EntryIndex(9), LeaderEpoch(2)))
    first.write(forced=True)
    second = CommittedMarks(tmp_path)
    second.note("new/0", Mark(EntryIndex(1), LeaderEpoch(0)))
    second.write(forced=True)
    assert CommittedMarks(tmp_path).recall("old/0") is None
