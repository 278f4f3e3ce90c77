"""Messages of replication survive a round trip, and invalid ones are refused."""

from __future__ import annotations

from contextlib import suppress

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from isolog.errors import InvalidRequest, NotLeader
from spark_stream.consistency.entries import ENTRY, ENTRY_SIZE
from spark_stream.consistency.replication.epochs import EpochHistory
from spark_stream.wire.replication_messages import (
    Acked,
    Agreed,
    Beat,
    Bye,
    Follow,
    Frame,
    HighWatermarks,
    Refused,
    Room,
    Unfollow,
    Welcome,
    unpack,
)

slots = st.integers(0, 2**31 - 1)
entries = st.integers(0, 2**62)
epochs = st.integers(0, 2**31 - 1)
names = st.text(max_size=40)
pairs = st.lists(st.tuples(slots, entries), max_size=20).map(tuple)
messages = st.one_of(
    st.builds(Welcome, st.integers(0, 65535), names),
    st.builds(Unfollow, slots, st.none() | st.integers(0, 2**63 - 1), st.booleans()),
    st.builds(Acked, pairs),
    st.builds(HighWatermarks, pairs),
    st.builds(Room, entries),
    st.builds(Agreed, slots, entries, st.none() | entries, entries),
    st.just(Beat()),
    st.just(Bye()),
)


@given(messages)
def test_replication_message_survives_a_round_trip(message):
    assert unpack(pa.py_buffer(message.pack()), None) == message


@given(
    slots,
    names,
    slots,
    epochs,
    names,
    entries,
    st.lists(st.tuples(epochs, st.integers(1, 1000)), max_size=20),
)
def test_epoch_history_survives_a_round_trip(
    slot, topic, partition, epoch, generation, start, spans
):
    first, starts = start, []
    for number, (_, length) in enumerate(spans):
        starts.append((number, first))
        first += length
    history = EpochHistory(start, first, starts)
    message = Follow(slot, topic, partition, epoch, generation, history)
    found = unpack(pa.py_buffer(message.pack()), None)
    assert (found.slot, found.topic_id, found.partition) == (slot, topic, partition)
    assert (found.leader_epoch, found.generation) == (epoch, generation)
    assert found.history == history


def test_a_refusal_keeps_its_error():
    found = unpack(pa.py_buffer(Refused(7, NotLeader("it moved", epoch=3)).pack()), None)
    assert (found.slot, type(found.error), found.error.details) == (7, NotLeader, {"epoch": 3})


@pytest.mark.parametrize("size", [0, 1, 300, 3 << 20])
def test_frame_survives_a_round_trip_without_a_copy_of_its_body(size):
    rows = np.zeros(3, ENTRY)
    rows["entry_index"] = range(5, 8)
    data = pa.py_buffer(bytes(range(256)) * (size // 256) + bytes(size % 256))
    metadata, batch = Frame(2, 9, 5, 4, rows, data).pack()
    found = unpack(pa.py_buffer(metadata), batch)
    assert (found.slot, found.leader_epoch, found.first, found.high_watermark) == (2, 9, 5, 4)
    assert (found.end, found.size) == (8, 3 * ENTRY_SIZE + size)
    assert np.array_equal(found.rows, rows)
    assert found.data.equals(data)
    assert found.data.address == data.address


@given(st.integers(0, 12), st.binary(max_size=100))
def test_arbitrary_bytes_are_refused_as_invalid_requests(kind, rest):
    with suppress(InvalidRequest):
        unpack(pa.py_buffer(bytes((0x90 + len(rest) % 9, kind)) + rest), None)


@pytest.mark.parametrize(
    "data",
    [b"", b"\0", b"\xff12", b"\x92\x02", b"\x92\x0b\xa5short", b"\x92\x04\xdd\xff\xff\xff\xff"],
)
def test_truncated_message_is_refused(data):
    with pytest.raises(InvalidRequest, match="stream of replication"):
        unpack(pa.py_buffer(data), None)
