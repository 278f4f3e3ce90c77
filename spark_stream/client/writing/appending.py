"""One stream of appends to a topic: batches go out, acknowledgements come back.

The stream reports each acknowledgement, and then its end with the reason, on the thread of the
process's loop. ``core`` knows which batches were on it, and decides what to do with them.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import Final

from msgspec import structs

from spark_stream.client.connecting.shared import SharedChannel
from spark_stream.client.writing.lanes import Outgoing
from spark_stream.errors import BrokerUnavailable, InternalError, InvalidRequest, IsologError
from spark_stream.protocol import Bytes, Credited, Received, StreamOver
from spark_stream.transport.failures import TRANSPORT_ERRORS
from spark_stream.transport.lifetime import new_lock
from spark_stream.transport.streams import Handle, Stream, StreamEvent, error_of
from spark_stream.wire.append_messages import Ack, AppendTo, ack_from_bytes
from spark_stream.wire.methods import APPEND
from spark_stream.wire.topic_messages import TopicDescription

# How much earlier than the client the leader gives up a batch, so that its answer, which has the
# offsets, arrives in time; but at most 1 / _ANSWER_PART of the timeout.
_ANSWER_MS: Final = 1000
_ANSWER_PART: Final = 5
_CREDIT_BYTES: Final = 8 << 10  # much less than a stream may have in flight


class AppendStream:
    """A stream of appends to one topic. Call :meth:`start` first.

    ``answered`` and ``ended`` are called on the loop's thread, and must not block. ``ended`` is not
    called for a stream that was ended or broken off from here. Any thread may send; none waits.
    """

    def __init__(
        self,
        shared: SharedChannel,
        answered: Callable[[Ack], None],
        ended: Callable[[IsologError], None],
    ) -> None:
        self._shared = shared  # the connection lives as long as this refers to it
        self._answered = answered
        self._ended = ended
        self._lock = new_lock()
        self._unsent: deque[tuple[bytes, Outgoing]] = deque()  # waiting for credit
        self._first: memoryview | None = None  # the first of them, serialized
        self._is_over = False
        self._taken = 0  # bytes of answers whose credit was not given back yet
        self._stream: Stream | None = None

    def start(self, topic: TopicDescription, request: AppendTo) -> None:
        """Open the stream, without waiting for the broker. Call this once, before anything else.

        Raises:
            BrokerUnavailable, RequestTimeout: the connection takes no new stream now.
        """
        channel, header = self._shared.channel, _as_sent(request).to_bytes()
        try:
            body = memoryview(topic.schema.serialize())
            self._stream = channel.open_with(self._begin, APPEND, header, body)
        except TRANSPORT_ERRORS as error:
            raise self._shared.failure_of(error) from None

    def _begin(self, stream: Stream) -> Handle:
        self._stream = stream
        return self._handle

    def send(self, envelope: bytes, batch: Outgoing) -> None:
        """Send a batch as soon as there is credit for it; drop it once the stream has ended."""
        with self._lock:
            if self._unsent or not self._send(envelope, batch):
                self._unsent.append((envelope, batch))

    def _send(self, envelope: bytes, batch: Outgoing) -> bool:
        assert self._stream is not None
        body, self._first = self._first or memoryview(batch.whole().serialize()), None
        with suppress(StreamOver):  # its end is reported separately
            if not self._stream.send(envelope, body):
                self._first = body
                return False
        return True

    def end(self) -> None:
        """End the stream: send and report nothing more."""
        assert self._stream is not None
        self._is_over = True
        with suppress(StreamOver):
            self._stream.send(b"", end=True)

    def break_off(self) -> None:
        """Cancel the stream, and report nothing more."""
        assert self._stream is not None
        self._is_over = True
        self._stream.cancel()

    # -- on the loop's thread -------------------------------------------------------------------

    def _handle(self, event: StreamEvent) -> None:
        assert self._stream is not None
        match event:
            case Received():
                if event.header:
                    self._take(event.header)
                    self._taken += event.size
                    if self._taken >= _CREDIT_BYTES:
                        self._stream.grant_credit(self._taken)
                        self._taken = 0
                if event.end:
                    self._stream.cancel()  # unless this side has ended it
                    self._over(BrokerUnavailable("the broker ended the stream"))
            case Credited():
                with self._lock:
                    while self._unsent and self._send(*self._unsent[0]):
                        self._unsent.popleft()
            case _:
                lost = error_of(event, self._shared.channel.address)
                self._over(self._shared.failure_of(lost))

    def _take(self, answer: Bytes) -> None:
        try:
            ack = ack_from_bytes(bytes(answer))
        except InvalidRequest as error:
            where = self._shared.channel.address
            assert self._stream is not None
            self._stream.cancel()
            self._over(InternalError(f"{where} sends an invalid answer: {error.message}"))
        else:
            if not self._is_over:
                self._answered(ack)

    def _over(self, reason: IsologError) -> None:
        if not self._is_over:
            self._is_over = True
            self._ended(reason)


def _as_sent(request: AppendTo) -> AppendTo:
    """Return the request with the leader's timeout, which is shorter than the client's."""
    whole = request.timeout_ms
    return structs.replace(
        request, timeout_ms=max(1, whole - min(_ANSWER_MS, whole // _ANSWER_PART))
    )
