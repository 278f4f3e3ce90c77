"""One stream of appends to a topic: batches go out, acknowledgements come back.

The stream hands each acknowledgement on, and then, once, its end with the reason. ``delivery``
knows which batches were on it, and decides what becomes of them.

Any thread writes, one at a time. What comes back is handed on by the thread of the process's loop,
which must not wait for anything.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Final

import pyarrow as pa
from msgspec import structs

from spark_stream.client.connecting.shared import SharedChannel
from spark_stream.errors import BrokerUnavailable, InternalError, InvalidRequest, IsologError
from spark_stream.protocol import Bytes, Credited, Received, StreamOver
from spark_stream.transport.failures import TRANSPORT_ERRORS, failure_of
from spark_stream.transport.streams import Handle, Stream, StreamEvent, error_of
from spark_stream.wire.messages import Ack, AppendTo, TopicDescription, ack_from_bytes
from spark_stream.wire.methods import APPEND

# How much earlier than the client the leader gives up a batch: so that its answer, which knows the
# offsets, is there in time. At most a part of the time that there is.
_ANSWER_MS: Final = 1000
_ANSWER_PART: Final = 5

Answered = Callable[["AppendStream", Ack], None]
Ended = Callable[["AppendStream", IsologError], None]


class AppendStream:
    """A stream of appends to one topic, from :meth:`start` on.

    ``answered`` and ``ended`` are called on the loop's thread, and must not block. Who breaks the
    stream off gets its ``ended`` too.
    """

    def __init__(
        self,
        shared: SharedChannel,
        topic: TopicDescription,
        request: AppendTo,
        answered: Answered,
        ended: Ended,
    ) -> None:
        self._shared = shared
        self._topic = topic
        self._request = request
        self._answered = answered
        self._ended = ended
        self._changed = threading.Condition()
        self._over = False
        self._told = threading.Event()  # that it is over
        self._stream: Stream | None = None

    def start(self) -> None:
        """Open the stream, without waiting for the broker. Call this once, before all else.

        Raises:
            BrokerUnavailable, RequestTimeout: the connection takes no streams now.
        """
        channel, header = self._shared.channel, _as_sent(self._request).to_bytes()
        body = memoryview(self._topic.schema.serialize())
        try:
            self._stream = channel.open_with(self._begin, APPEND, header, body)
        except TRANSPORT_ERRORS as error:
            raise failure_of(error, channel.address) from error

    def _begin(self, stream: Stream) -> Handle:
        self._stream = stream
        return self._handle

    def write(self, batch: pa.RecordBatch, envelope: bytes) -> None:
        """Send a batch, when the broker takes it; nothing once the stream has ended."""
        assert self._stream is not None
        body = memoryview(batch.serialize())
        try:
            if self._stream.send(envelope, body):
                return
            with self._changed:
                while not self._over and not self._stream.send(envelope, body):
                    self._changed.wait()
        except StreamOver:
            pass  # its end is handed on by itself

    def break_off(self, reason: IsologError) -> None:
        """Give the stream up; a write that waits ends."""
        assert self._stream is not None
        self._stream.cancel()
        self._end(reason)

    def close(self) -> None:
        """Send no more batches, and wait for the last acknowledgements.

        A stream that the broker does not end in time is broken off.
        """
        assert self._stream is not None
        with suppress(StreamOver):
            self._stream.send(b"", end=True)
        if not self._told.wait(self._request.timeout_ms / 1000):
            self.break_off(BrokerUnavailable("the stream was closed"))

    def _handle(self, event: StreamEvent) -> None:
        assert self._stream is not None
        match event:
            case Received():
                if event.header:
                    self._stream.consumed(event.size)
                    self._take(event.header)
                if event.end:
                    self._stream.cancel()  # unless this side has ended it
                    self._end(BrokerUnavailable("the broker ended the stream"))
            case Credited():
                with self._changed:
                    self._changed.notify_all()
            case _:
                address = self._shared.channel.address
                self._end(failure_of(error_of(event, address), address))

    def _take(self, answer: Bytes) -> None:
        try:
            ack = ack_from_bytes(bytes(answer))
        except InvalidRequest as error:
            where = self._shared.channel.address
            self.break_off(
                InternalError(f"{where} answers with what is no answer: {error.message}")
            )
        else:
            self._answered(self, ack)

    def _end(self, reason: IsologError) -> None:
        with self._changed:
            if self._over:
                return
            self._over = True
            self._changed.notify_all()
        self._ended(self, reason)
        self._told.set()


def _as_sent(request: AppendTo) -> AppendTo:
    """The request with the time that the leader has."""
    whole = request.timeout_ms
    return structs.replace(
        request, timeout_ms=max(1, whole - min(_ANSWER_MS, whole // _ANSWER_PART))
    )
