"""Room in a producer's buffer: reservations and releases."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from isolog.errors import BufferFull
from spark_stream.client.writing.buffer import Buffer, Share
from spark_stream.transport.channel import ChannelWaits


def test_parts_that_share_memory_free_their_room_after_the_last_one():
    buffer = Buffer(100, 0.01, lambda: None, ChannelWaits())
    with buffer.lock:
        buffer.reserve(90)
        share = Share(90, 1, parts=2, flushes=buffer.take())
    buffer.release(share)
    with buffer.lock, pytest.raises(BufferFull):
        buffer.reserve(90)
    buffer.release(share)
    assert buffer.outstanding == 0
    with buffer.lock:
        buffer.reserve(90)


def test_a_flush_waits_only_for_earlier_records():
    """Its call of ``hurry`` may take records, which count as later."""
    taken: list[Share] = []
    meanwhile: list[Callable[[], None]] = []

    def take() -> None:
        with buffer.lock:
            buffer.reserve(1)
            taken.append(Share(1, 1, 1, buffer.take()))

    buffer = Buffer(100, 0.01, lambda: [each() for each in meanwhile], ChannelWaits())
    take()
    take()
    meanwhile[:] = [take, lambda: buffer.release(taken[0])]
    with pytest.raises(TimeoutError, match="2 records"):
        buffer.await_settled(0)
    meanwhile[:] = [take, lambda: buffer.release(taken[1]), lambda: buffer.release(taken[2])]
    buffer.await_settled(0)
    assert buffer.outstanding == 1
