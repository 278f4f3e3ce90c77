"""The choice of files to merge: few files, and few rewrites of a row."""

from __future__ import annotations

import json

from spark_stream.lake.delta.actions import AddFile
from spark_stream.lake.merging import small_files

FILE_BYTES = 1 << 20


def file(first: int, size: int) -> AddFile:
    stats = {
        "numRecords": size,
        "minValues": {"_partition": 0, "_offset": first},
        "maxValues": {"_partition": 0, "_offset": first + size - 1},
    }
    return AddFile(
        path=f"{first}-{size}.parquet",
        partition_values={},
        size=size,
        modification_time=0,
        data_change=True,
        stats=json.dumps(stats),
    )


def test_rows_of_small_rounds_are_rewritten_a_few_times_and_files_stay_few():
    files: list[AddFile] = []
    rewritten, most, size = 0, 0, 1 << 10
    for at in range(2_000):
        files.append(file(at * size, size))
        while group := small_files(files, FILE_BYTES):
            merged = sum(each.size for each in group)
            rewritten += merged
            first = min(int(each.path.split("-")[0]) for each in group)
            files = [*(each for each in files if each not in group), file(first, merged)]
        most = max(most, sum(each.size <= FILE_BYTES // 2 for each in files))
    written = 2_000 * size
    assert sum(each.size for each in files) == written
    assert rewritten <= 8 * written
    assert most <= 24


def test_large_file_waits_for_as_many_bytes_behind_it():
    large, small = file(0, 100), [file(100 + 10 * each, 10) for each in range(4)]
    assert small_files([large, *small], FILE_BYTES) == small
    assert small_files([file(0, 30), *small], FILE_BYTES) == [file(0, 30), *small]
    assert small_files([large, *small[:3]], FILE_BYTES) == []
