"""Checksums of blocks equal those of rows, and gathered messages equal those of a loop."""

from __future__ import annotations

import mmap
import tracemalloc

import google_crc32c
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spark_stream.consistency.entries import CRC_SPAN, ENTRY, ENTRY_SIZE, Table
from spark_stream.storage.format import codec
from spark_stream.storage.format.codec import gathered, intact_entries, intact_rows, sealed
from tests.examples import examples

BLOCK = codec._BLOCK_ENTRIES


def sealed_table(rows: int, seed: int = 0) -> Table:
    """Entries of any content, each with its checksum."""
    noise = np.random.Generator(np.random.PCG64(seed)).bytes(rows * CRC_SPAN)
    parts = [sealed(noise[at : at + CRC_SPAN]) for at in range(0, len(noise), CRC_SPAN)]
    return np.frombuffer(bytearray(b"".join(parts)), ENTRY)


def walked(table: Table) -> list[bool]:
    """The same check, row by row, from the bytes."""
    rows = [row.tobytes() for row in table]
    return [
        google_crc32c.value(row[:CRC_SPAN]) == int.from_bytes(row[CRC_SPAN:], "little")
        for row in rows
    ]


SOUND = sealed_table(3 * BLOCK + 17)
PLACES = sorted({0, 1, BLOCK - 1, BLOCK, BLOCK + 1, 2 * BLOCK - 1, 3 * BLOCK, 3 * BLOCK + 16})


@pytest.mark.parametrize("rows", [0, 1, BLOCK - 1, BLOCK, BLOCK + 1, 3 * BLOCK, 3 * BLOCK + 17])
def test_intact_entries_of_any_number_pass_the_check(rows):
    assert intact_entries(SOUND[:rows]) == rows
    assert intact_rows(SOUND[:rows]).all()


@settings(max_examples=examples(60), deadline=None)
@given(
    st.lists(
        st.tuples(
            st.sampled_from(PLACES) | st.integers(0, len(SOUND) - 1),
            st.integers(0, ENTRY_SIZE - 1),
            st.integers(1, 255),
        ),
        min_size=1,
        max_size=4,
    ),
    st.sampled_from([0, 5, BLOCK]),
)
def test_check_by_blocks_equals_check_by_rows(damages, start):
    """Two faults in a block could cancel each other out in one checksum."""
    table = SOUND.copy()
    raw = table.view(np.uint8).reshape(len(table), ENTRY_SIZE)
    for row, at, bits in damages:
        raw[row, at] ^= bits
    table = table[start:]
    sound = walked(table)
    assert intact_rows(table).tolist() == sound
    assert intact_entries(table) == (sound.index(False) if False in sound else len(sound))


def test_order_does_not_matter_but_swapped_checksums_fail():
    assert intact_entries(SOUND[::-1].copy()) == len(SOUND)
    table = SOUND.copy()
    table["entry_crc"][[BLOCK + 3, BLOCK + 4]] = table["entry_crc"][[BLOCK + 4, BLOCK + 3]]
    assert intact_entries(table) == BLOCK + 3


@settings(max_examples=examples(200), deadline=None)
@given(st.lists(st.tuples(st.integers(0, 6), st.integers(1, 5)), min_size=1, max_size=30))
@pytest.mark.parametrize("unit", [8, 8 * 200], ids=["small", "large"])
def test_gathered_returns_exactly_the_messages(unit, spaced):
    """``spaced``: for each message, the unwanted units of bytes before it, and its own units."""
    starts, lengths, at = [], [], 0
    for gap, length in spaced:
        at += unit * gap if starts else 0
        starts.append(at)
        lengths.append(unit * length)
        at += unit * length
    data = np.random.Generator(np.random.PCG64(at)).bytes(at)
    found = gathered(pa.py_buffer(data), np.array(starts), np.array(lengths))
    pieces = [data[start : start + size] for start, size in zip(starts, lengths, strict=True)]
    assert b"".join(found) == b"".join(pieces)


@pytest.mark.parametrize(
    ("starts", "lengths"),
    [([0, 16], [16, 32]), ([0, 1600], [1600, 8]), ([0, 1 << 16], [8, 8])],
    ids=["neighbours, small", "neighbours, large", "far apart"],
)
def test_adjacent_and_distant_messages_are_not_copied(starts, lengths):
    data = np.zeros(starts[-1] + lengths[-1], np.uint8)
    for part in gathered(pa.py_buffer(data), np.array(starts), np.array(lengths)):
        assert np.shares_memory(data, np.frombuffer(part, np.uint8))


def test_gaps_between_messages_need_no_memory():
    """A few small messages of a large segment, with 200 MB of aborted records between them."""
    count, apart = 1_000, 200_000
    data = pa.py_buffer(mmap.mmap(-1, count * apart))
    starts = np.arange(count) * apart
    last = int(starts[-1]) + 8
    tracemalloc.start()
    try:
        found = gathered(data.slice(0, last), starts, np.full(count, 8))
        used = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert b"".join(found) == bytes(8 * count)
    assert used < 1 << 20
