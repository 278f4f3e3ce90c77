"""The places of entries' messages in the files of another replica."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

from isolog.errors import DamagedSegment, EntriesGone, InvalidRequest
from spark_stream.consistency.entries import Kind
from spark_stream.consistency.ids import Offset
from spark_stream.storage.log import reading
from spark_stream.storage.log.log import PartitionLog
from tests.storage.logs import EPOCH, NOW, append_next, flip, format_of, segment_path


def runs(*found: tuple[int, int]) -> np.ndarray:
    return np.array(found, np.int64).reshape(-1, 2)


@contextmanager
def new_log(folder: Path, **settings: int) -> Iterator[PartitionLog]:
    log = PartitionLog.open(folder, format_of(**settings))
    try:
        yield log
    finally:
        log.close()


def test_places_equal_those_of_a_read(tmp_path: Path) -> None:
    with new_log(tmp_path) as log:
        for _ in range(12):
            append_next(log)
        (chunk,) = log.read(Offset(0), Offset(120), locating=True)
        assert chunk.stored is not None
        found = log.locate(chunk.stored.indexes, chunk.stored.epoch)
        assert found is not None
        assert found.parts.tolist() == chunk.stored.parts.tolist()
        assert (found.crc, found.entries) == (
            chunk.stored.crc,
            chunk.stored.entries,
        )
        part = log.locate(runs((2, 3), (8, 1)), int(EPOCH))
        assert part is not None
        assert part.indexes.tolist() == [[2, 3], [8, 1]]
        assert len(part.parts) == 2
        assert part.entries == 4


def test_chunk_of_places_has_a_limit_of_entries(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reading, "LOCATED_ENTRIES_MAX", 5)
    with new_log(tmp_path) as log:
        for _ in range(12):
            append_next(log)
        chunks = list(log.read(Offset(5), Offset(120), locating=True))
        assert [len(each.counts) for each in chunks] == [5, 5, 2]
        assert [each.next_offset for each in chunks] == [50, 100, 120]
        (whole,) = log.read(Offset(5), Offset(120))
        assert len(whole.counts) == 12


@pytest.mark.rule("the place of a leader's entries in a follower's files", "storage/log/reading.py")
def test_entry_of_another_epoch_is_another_entry(tmp_path: Path) -> None:
    with new_log(tmp_path) as log:
        append_next(log)
        assert log.locate(runs((0, 1)), 0) is not None
        assert log.locate(runs((0, 1)), 1) is None


def test_entries_missing_or_in_two_files_have_no_place(tmp_path: Path) -> None:
    with new_log(tmp_path, segment_entries=4) as log:
        for _ in range(10):
            append_next(log)
        assert log.locate(runs((4, 4)), 0) is not None
        assert log.locate(runs((3, 2)), 0) is None
        assert log.locate(runs((8, 3)), 0) is None
        with pytest.raises(EntriesGone):
            log.locate(runs((11, 1)), 0)


@pytest.mark.parametrize(
    "wrong", [[(0, 0)], [(0, 3), (2, 1)], [(5, 1), (1, 1)], [(0, 1), (1, -4)], [(6, 1)]]
)
def test_malformed_runs_are_refused(tmp_path: Path, wrong: list[tuple[int, int]]) -> None:
    with new_log(tmp_path) as log:
        for _ in range(6):
            append_next(log)
        log.mark(Kind.COMMIT, 1, 1, 1, EPOCH, NOW)
        with pytest.raises(InvalidRequest):
            log.locate(runs(*wrong), 0)


@pytest.mark.parametrize("what", ["arrow", "entries"])
def test_doubted_places_are_checked_and_damage_is_recorded(tmp_path: Path, what: str) -> None:
    with new_log(tmp_path) as log:
        append_next(log)
        log.roll()
        append_next(log)
        assert log.locate(runs((0, 1)), 0, doubted=True) is not None
        place = 50 if what == "entries" else log.segments[0].data_end - 9
        flip(segment_path(log, 0, what), place, 3)
        assert log.hole is None
        with pytest.raises(DamagedSegment):
            log.locate(runs((0, 1)), 0, doubted=True)
        assert log.hole == 0
