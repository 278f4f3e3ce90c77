"""One stream of appends to a topic: batches go out, acknowledgements come back.

The stream hands each acknowledgement on, and then, once, its end with the reason. ``delivery``
knows which batches were on it, and decides what becomes of them.

The rule: **one thread at a time touches the writing side of a Flight stream**. Writing, ending the
writes and closing all count: gRPC aborts the whole process when two of them happen at once. So only
:class:`WritingSide` has the writer, and it holds its lock at each touch. One thread reads all the
answers; reading beside a write is safe.

A stuck write holds the lock, and others wait for it. Closing its socket ends the write
(:meth:`AppendStream.break_off`, which needs no lock), and the others go on.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Final

import pyarrow as pa
import pyarrow.flight as fl
from msgspec import structs

from spark_stream.client.connecting.link import BrokerLink
from spark_stream.client.connecting.under_way import UNDER_WAY
from spark_stream.errors import BrokerUnavailable, InternalError, InvalidRequest, IsologError
from spark_stream.wire.messages import Ack, AppendTo, TopicDescription, ack_from_bytes

_FLIGHT_ERRORS: Final = (fl.FlightError, pa.ArrowException, OSError)
_READER_ENDS_S: Final = 1.0
# How much earlier than the client the leader gives up a batch: so that its answer, which knows the
# offsets, is there in time. At most a part of the time that there is.
_ANSWER_MS: Final = 1000
_ANSWER_PART: Final = 5

Answered = Callable[["AppendStream", Ack], None]
Ended = Callable[["AppendStream", IsologError], None]


class WritingSide:
    """The writer of a DoPut. After :meth:`end` or a failure nothing is written any more."""

    def __init__(self, writer: fl.FlightStreamWriter) -> None:
        self._writer = writer
        self._lock = threading.Lock()
        self._ended = False
        self._failure: Exception | None = None

    def write(self, batch: pa.RecordBatch, envelope: bytes) -> Exception | None:
        """Sends a batch unless the writes have ended; the error if that fails."""
        with self._lock:
            if self._ended:
                return None
            try:
                with UNDER_WAY:
                    self._writer.write_with_metadata(batch, envelope)
            except _FLIGHT_ERRORS as error:
                return self._failed(error)
            return None

    def end(self) -> Exception | None:
        """Says that no more batches come; the error if that fails."""
        with self._lock:
            if self._ended:
                return None
            self._ended = True
            try:
                with UNDER_WAY:
                    self._writer.done_writing()
            except _FLIGHT_ERRORS as error:
                return self._failed(error)
            return None

    def close(self) -> Exception | None:
        """Lets go of the stream, whose answers have ended; the error that ended it, if one did.

        That may be one which an earlier touch was told: Flight tells the first that asks.
        """
        with self._lock:
            self._ended = True
            try:
                with UNDER_WAY:
                    self._writer.close()
            except _FLIGHT_ERRORS as error:
                return error
            return self._failure

    def _failed(self, error: Exception) -> Exception:
        self._ended, self._failure = True, error
        return error


class AppendStream:
    """A DoPut to one topic. A thread of its own calls ``answered`` and ``ended``.

    A thread that writes may call ``ended`` too. Nobody calls either before :meth:`start`.
    """

    def __init__(
        self,
        link: BrokerLink,
        client: fl.FlightClient,
        topic: TopicDescription,
        request: AppendTo,
        answered: Answered,
        ended: Ended,
    ) -> None:
        self._link = link
        self._client = client
        self._timeout_s = request.timeout_ms / 1000
        self._answered = answered
        self._ended = ended
        self._state_lock = threading.Lock()
        self._over = False
        descriptor = fl.FlightDescriptor.for_command(_as_sent(request).to_bytes())
        with UNDER_WAY:
            writer, self._acks = client.do_put(descriptor, topic.schema)
        self._writing = WritingSide(writer)
        self._reader = threading.Thread(
            target=self._read, name=f"isolog-acks-{topic.name}", daemon=True
        )

    def start(self) -> None:
        """Begins to read the acknowledgements: before anything is written, and only once."""
        self._reader.start()

    def write(self, batch: pa.RecordBatch, envelope: bytes) -> None:
        """Sends a batch; if that fails the stream ends."""
        failure = self._writing.write(batch, envelope)
        if failure is not None:
            # The reader meets the end of the stream too and knows its reason; this is in case that
            # it does not.
            self._reader.join(_READER_ENDS_S)
            self._end(self._reason(failure))

    def break_off(self, reason: IsologError) -> None:
        """Ends the stream and its connection: a write may be stuck, and the broker is to know."""
        self._end(reason)
        self._link.break_off(self._client)

    def close(self) -> None:
        """Says that no more batches come, and waits for the last acknowledgements.

        A broker that does not end its side in time is broken off.
        """
        self._writing.end()
        self._reader.join(self._timeout_s)
        ended = BrokerUnavailable("the stream was closed")
        if self._reader.is_alive():
            self.break_off(ended)
            self._reader.join(_READER_ENDS_S)
        self._end(ended)

    def _read(self) -> None:
        failure: Exception | None = None
        try:
            while (data := self._next_answer()) is not None:
                self._answered(self, ack_from_bytes(data))
        except _FLIGHT_ERRORS as error:
            failure = error
        except InvalidRequest as error:
            self._end(
                InternalError(
                    f"{self._link.address} answers with what is no answer: {error.message}"
                )
            )
        # The reason why the answers ended, if it is an error, comes with the close.
        failure = self._writing.close() or failure
        ended = BrokerUnavailable("the broker ended the stream")
        self._end(ended if failure is None else self._reason(failure))

    def _next_answer(self) -> pa.Buffer | None:
        with UNDER_WAY:
            return self._acks.read()

    def _reason(self, error: Exception) -> IsologError:
        return self._link.translated(error, self._client)

    def _end(self, reason: IsologError) -> None:
        with self._state_lock:
            if self._over:
                return
            self._over = True
        self._ended(self, reason)


def _as_sent(request: AppendTo) -> AppendTo:
    """The request with the time that the leader has."""
    whole = request.timeout_ms
    return structs.replace(
        request, timeout_ms=max(1, whole - min(_ANSWER_MS, whole // _ANSWER_PART))
    )
