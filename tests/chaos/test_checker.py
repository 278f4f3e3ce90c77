"""The checker finds each kind of planted violation, and no other."""

from __future__ import annotations

import pandas as pd
import pytest

from tests.chaos.checker import READ, WRITE, check

LEVELS = ("read_uncommitted", "read_replicated", "read_committed", "read_atomic")


def history() -> tuple[pd.DataFrame, pd.DataFrame]:
    """A plain writer, a committed transaction over two partitions, an aborted one, and readers."""
    writes = pd.DataFrame(
        [
            ("plain", 0, "t", 0, -1, "acknowledged"),
            ("plain", 1, "t", 0, -1, "acknowledged"),
            ("plain", 2, "t", 1, -1, "unknown"),
            ("loader", 0, "t", 0, 1, "committed"),
            ("loader", 1, "t", 1, 1, "committed"),
            ("loader", 2, "u", 0, 1, "committed"),
            ("loader", 3, "t", 0, 2, "aborted"),
            ("loader", 4, "t", 1, 2, "aborted"),
        ],
        columns=WRITE,
    )
    log = [
        ("t", 0, 0, "plain", 0),
        ("t", 0, 1, "loader", 0),
        ("t", 0, 2, "plain", 1),
        ("t", 0, 3, "loader", 3),
        ("t", 1, 0, "loader", 1),
        ("t", 1, 1, "loader", 4),
        ("u", 0, 0, "loader", 2),
    ]
    rows = [
        (level, level, 0 if level == "read_atomic" else -1, *row)
        for level in LEVELS
        for row in log
        if level in LEVELS[:2] or (row[3], row[4]) not in {("loader", 3), ("loader", 4)}
    ]
    return writes, pd.DataFrame(rows, columns=READ)


def kinds(writes: pd.DataFrame, reads: pd.DataFrame) -> set[tuple[str, str]]:
    return {(each.kind, each.reader) for each in check(writes, reads, set(LEVELS))}


def without(reads: pd.DataFrame, reader: str, writer: str, number: int) -> pd.DataFrame:
    gone = (reads["reader"] == reader) & (reads["writer"] == writer) & (reads["number"] == number)
    assert gone.any()
    return reads[~gone]


def added(reads: pd.DataFrame, *row: object) -> pd.DataFrame:
    return pd.concat([reads, pd.DataFrame([row], columns=READ)], ignore_index=True)


def test_correct_history_passes():
    assert kinds(*history()) == set()


def test_record_of_unknown_outcome_may_exist_or_not():
    writes, reads = history()
    for level in LEVELS:
        snapshot = 0 if level == "read_atomic" else -1
        reads = added(reads, level, level, snapshot, "t", 1, 2, "plain", 2)
    assert kinds(writes, reads) == set()


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("record", [("plain", 1), ("loader", 1)])
def test_lost_record_is_found(level, record):
    writes, reads = history()
    assert ("lost", level) in kinds(writes, without(reads, level, *record))


@pytest.mark.parametrize("level", LEVELS)
def test_duplicate_record_is_found(level):
    writes, reads = history()
    snapshot = 0 if level == "read_atomic" else -1
    reads = added(reads, level, level, snapshot, "t", 0, 9, "plain", 1)
    assert ("duplicated", level) in kinds(writes, reads)


@pytest.mark.parametrize("level", LEVELS)
def test_reordered_writer_is_found(level):
    writes, reads = history()
    mine = (reads["reader"] == level) & (reads["writer"] == "plain")
    reads.loc[mine, "number"] = reads.loc[mine, "number"].to_numpy()[::-1]
    assert ("reordered", level) in kinds(writes, reads)


@pytest.mark.parametrize("level", LEVELS)
def test_decreasing_offsets_are_found(level):
    writes, reads = history()
    assert ("reordered", level) in kinds(writes, reads.iloc[::-1])


@pytest.mark.parametrize("level", LEVELS[2:])
def test_aborted_record_is_found(level):
    writes, reads = history()
    snapshot = 0 if level == "read_atomic" else -1
    reads = added(reads, level, level, snapshot, "t", 0, 3, "loader", 3)
    assert ("aborted", level) in kinds(writes, reads)


@pytest.mark.parametrize("number", [0, 1, 2])
def test_fractured_read_is_found(number):
    """A part of the transaction is missing in one partition, or in the other topic."""
    writes, reads = history()
    found = kinds(writes, without(reads, "read_atomic", "loader", number))
    assert ("fractured", "read_atomic") in found


def test_snapshot_without_any_part_of_a_transaction_passes():
    writes, reads = history()
    atomic = (reads["reader"] == "read_atomic") & (reads["writer"] == "loader")
    assert {each.kind for each in check(writes, reads[~atomic], set())} == set()


def test_transaction_whole_in_the_next_snapshot_passes():
    writes, reads = history()
    later = reads[reads["reader"] == "read_atomic"].assign(snapshot=1)
    assert kinds(writes, pd.concat([reads, later])) == set()


def test_record_in_another_partition_is_found():
    writes, reads = history()
    reads.loc[(reads["writer"] == "plain") & (reads["number"] == 1), "partition"] = 1
    assert ("misplaced", "read_committed") in kinds(writes, reads)


def test_invented_record_is_found():
    writes, reads = history()
    reads = added(reads, "read_committed", "read_committed", -1, "u", 0, 7, "nobody", 0)
    assert ("invented", "read_committed") in kinds(writes, reads)


def test_offset_with_different_records_is_found():
    writes, reads = history()
    mine = (reads["reader"] == "read_uncommitted") & (reads["offset"] == 2)
    reads.loc[mine, "number"] = 2
    assert ("changed", "all") in kinds(writes, reads)


def test_only_uncommitted_readers_may_see_removed_records():
    writes, reads = history()
    mine = (reads["reader"] == "read_uncommitted") & (reads["offset"] == 2)
    reads.loc[mine, "number"] = 0  # a record that it has seen before, at the offset of another one
    fickle = frozenset({"read_uncommitted"})
    assert {"duplicated", "changed"} <= {each.kind for each in check(writes, reads, set())}
    assert check(writes, reads, set(), fickle) == []
    reads = added(reads, "read_uncommitted", "read_uncommitted", -1, "u", 0, 7, "nobody", 0)
    assert [each.kind for each in check(writes, reads, set(), fickle)] == ["invented"]
