"""One stream of appends to a topic: batches go out, acknowledgements come back.

Each acknowledgement is handed on, and then the end of the stream with its reason, once. Which
batches were on it, and what becomes of them, is the matter of ``delivery``.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from typing import Any, Final

import pyarrow as pa
import pyarrow.flight as fl

from spark_stream.client.connection import Connection
from spark_stream.client.values import TopicDescription
from spark_stream.errors import BrokerUnavailable, IsologError
from spark_stream.wire.messages import AppendTo

_FLIGHT_ERRORS: Final = (fl.FlightError, pa.ArrowException, OSError)

Answered = Callable[["AppendStream", dict[str, Any]], None]
Ended = Callable[["AppendStream", IsologError], None]


class AppendStream:
    """A DoPut to one topic. ``answered`` and ``ended`` are called by a thread of the stream's own.

    ``ended`` may also be called by whoever writes. Neither is, before :meth:`start`.
    """

    def __init__(
        self,
        connection: Connection,
        client: fl.FlightClient,
        topic: TopicDescription,
        request: AppendTo,
        answered: Answered,
        ended: Ended,
    ) -> None:
        self._connection = connection
        self._client = client
        self._timeout_s = request.timeout_ms / 1000
        self._answered = answered
        self._ended = ended
        self._write_lock = threading.Lock()
        self._state_lock = threading.Lock()
        self._over = False
        self._finished = False
        self._write_failure: Exception | None = None
        descriptor = fl.FlightDescriptor.for_command(request.to_bytes())
        self._writer, self._acks = client.do_put(descriptor, topic.schema)
        self._reader = threading.Thread(
            target=self._read, name=f"isolog-acks-{topic.name}", daemon=True
        )

    def start(self) -> None:
        """Begins to read the acknowledgements: before anything is written, and only once."""
        self._reader.start()

    def write(self, batch: pa.RecordBatch, envelope: bytes) -> None:
        """Sends a batch; if that fails the stream ends."""
        with self._write_lock:
            if self._over or self._finished:
                return
            try:
                self._writer.write_with_metadata(batch, envelope)
            except _FLIGHT_ERRORS as error:
                failure = self._write_failure = error
            else:
                return
        # The reader meets the end of the stream too and knows its reason; this is in case that it
        # does not.
        self._reader.join(1.0)
        self._end(self._reason(failure))

    def break_off(self, reason: IsologError) -> None:
        """Ends the stream and its connection: a write may be stuck, and the broker is to know."""
        address = self._connection.address
        self._end(reason)
        self._connection.break_off(self._client, address)

    def close(self) -> None:
        """Says that no more batches come, and waits for the last acknowledgements."""
        with self._write_lock:
            self._finish()
        self._reader.join(self._timeout_s)
        self._end(BrokerUnavailable("the stream was closed"))

    def _finish(self) -> None:
        """Says that no more batches come; whoever calls holds the write lock."""
        if self._finished or self._over:
            return
        self._finished = True
        try:
            self._writer.done_writing()
        except _FLIGHT_ERRORS as error:
            self._end(self._reason(error))

    def _read(self) -> None:
        try:
            while (data := self._acks.read()) is not None:
                self._answered(self, json.loads(data.to_pybytes()))
            # The end of the answers; the reason, if it is an error, comes with the close.
            self._writer.close()
        except _FLIGHT_ERRORS as error:
            self._end(self._reason(error))
            return
        # Whoever asks Flight first is told the reason, and that may be a write.
        with self._write_lock:
            failure = self._write_failure
        ended = BrokerUnavailable("the broker ended the stream")
        self._end(ended if failure is None else self._reason(failure))

    def _reason(self, error: Exception) -> IsologError:
        return self._connection.translated(error, self._client)

    def _end(self, reason: IsologError) -> None:
        with self._state_lock:
            if self._over:
                return
            self._over = True
        self._ended(self, reason)
