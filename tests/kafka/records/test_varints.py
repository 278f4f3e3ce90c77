"""Varints of many rows."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_stream.kafka.records.varints import (
    pack_varints,
    put_varint,
    varint_columns,
    varint_sizes,
    zigzag,
)

EDGES = [
    0,
    1,
    -1,
    63,
    64,
    -64,
    -65,
    8191,
    8192,
    1 << 20,
    (1 << 27) - 1,
    1 << 27,
    1 << 62,
    -(1 << 63),
]


def one_by_one(row: tuple[int | None, ...]) -> bytes:
    found = bytearray()
    for value in row:
        put_varint(found, 0 if value is None else value)
    return bytes(found)


@pytest.mark.rule("the varints of records", "kafka/records/varints.py")
@given(st.data())
def test_rows_are_packed_as_one_by_one(data):
    count = data.draw(st.integers(1, 20))
    most = data.draw(st.sampled_from([1, 60, 8_000, 1 << 20, 1 << 27, 1 << 62]))
    value = st.integers(-most, most)
    parts = data.draw(
        st.lists(
            st.none()
            | st.lists(value, min_size=count, max_size=count)
            | value.map(lambda n: [n] * count),
            min_size=1,
            max_size=4,
        )
    )
    arrays = [None if each is None else zigzag(np.array(each, np.int64)) for each in parts]
    rows = zip(*([None] * count if each is None else each for each in parts), strict=True)
    wanted = [one_by_one(row) for row in rows]
    packed = pack_varints(count, arrays)
    if packed is None:
        longest = sum(
            1 if each is None else max(len(one_by_one((n,))) for n in each) for each in parts
        )
        assert longest > 8 or most >= 1 << 27
        return
    ends, joined = packed
    assert ends.tolist() == np.cumsum([len(each) for each in wanted]).tolist()
    assert joined.tobytes() == b"".join(wanted)


def test_sizes_and_columns_are_those_of_one_by_one():
    values = zigzag(np.array(EDGES, np.int64))
    wanted = [one_by_one((each,)) for each in EDGES]
    assert varint_sizes(values).tolist() == [len(each) for each in wanted]
    data, used = varint_columns(values)
    assert data[used].tobytes() == b"".join(wanted)
