"""How much of a producer's buffer is taken, and when it is free again."""

from __future__ import annotations

import pytest

from spark_stream.client.writing.buffer import Buffer, Share
from spark_stream.errors import BufferFull


def test_parts_that_share_memory_give_their_room_back_with_the_last_of_them():
    buffer, share = Buffer(100, 0.01), Share(90, 1, parts=2)
    with buffer.lock:
        buffer.reserve(90)
    buffer.release(share)
    with buffer.lock, pytest.raises(BufferFull):
        buffer.reserve(90)
    buffer.release(share)
    assert buffer.outstanding == 0
    with buffer.lock:
        buffer.reserve(90)
