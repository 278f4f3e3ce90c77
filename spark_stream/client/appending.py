"""One stream of appends to a topic: batches go out, acknowledgements come back.

Invariants: a batch is entered among those in flight before it is sent, so an acknowledgement always
finds it; every batch that was entered is settled exactly once: by its acknowledgement, by the error
that ended the stream, or by its deadline. A batch that was sent and not answered has an *unknown
outcome*: it is not sent again by itself, for it may be in the log.
"""

from __future__ import annotations

import json
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import pyarrow as pa
import pyarrow.flight as fl

from spark_stream.client.connection import Connection
from spark_stream.client.values import TopicDescription
from spark_stream.errors import (
    BrokerUnavailable,
    InternalError,
    IsologError,
    RequestTimeout,
    UnknownOutcome,
    from_wire,
)
from spark_stream.wire.messages import AppendTo, Envelope

Settle = Callable[[int, IsologError | None], None]
"""Called once a batch: with its first offset, or the error (and -1, or the first kept offset)."""

_FLIGHT_ERRORS: Final = (fl.FlightError, pa.ArrowException, OSError)
_NO_ANSWER: Final = (BrokerUnavailable, RequestTimeout, InternalError)


@dataclass(slots=True)
class _InFlight:
    number: int
    partition: int
    rows: int
    deadline: float
    settle: Settle


class AppendStream:
    """A DoPut to one topic. ``write`` is for any thread; batches keep the order of calls."""

    def __init__(
        self,
        connection: Connection,
        client: fl.FlightClient,
        topic: TopicDescription,
        request: AppendTo,
    ) -> None:
        self._connection = connection
        self._topic = topic
        self._timeout_s = request.timeout_ms / 1000
        self._write_lock = threading.Lock()
        self._state_lock = threading.Lock()
        self._in_flight: deque[_InFlight] = deque()
        self._next_number = 0
        self._broken: IsologError | None = None
        self._finished = False
        self._write_failure: Exception | None = None
        self._client = client
        descriptor = fl.FlightDescriptor.for_command(request.to_bytes())
        self._writer, self._acks = client.do_put(descriptor, topic.schema)
        self._reader = threading.Thread(
            target=self._read, name=f"isolog-acks-{topic.name}", daemon=True
        )
        self._reader.start()

    @property
    def broken(self) -> bool:
        """Whether the stream has ended."""
        return self._broken is not None

    def takes(self, topic: TopicDescription) -> bool:
        """Whether more batches for this topic may be written; else a new stream is needed."""
        return self._broken is None and not self._finished and self._topic.id == topic.id

    def write(self, batch: pa.RecordBatch, partition: int, settle: Settle) -> bool:
        """Sends a batch. False if the stream had ended: nothing was sent, nothing is settled."""
        with self._write_lock:
            with self._state_lock:
                if self._broken is not None or self._finished:
                    return False
                number = self._next_number
                self._next_number += 1
                deadline = time.monotonic() + self._timeout_s
                self._in_flight.append(
                    _InFlight(number, partition, batch.num_rows, deadline, settle)
                )
            envelope = Envelope(number=number, partition=partition).to_bytes()
            try:
                self._writer.write_with_metadata(batch, envelope)
            except _FLIGHT_ERRORS as error:
                failure = self._write_failure = error
            else:
                return True
        # The reader meets the end of the stream too and knows its reason; this is in case that it
        # does not.
        self._reader.join(1.0)
        self._end(self._reason(failure))
        return True

    def expire(self) -> None:
        """Ends the stream if its oldest batch was not answered in time. To be called now and then.

        The connection ends with it: a write may be stuck in it, and the broker is to know.
        """
        with self._state_lock:
            late = self._in_flight and self._in_flight[0].deadline < time.monotonic()
        if late:
            address = self._connection.address
            self._end(
                BrokerUnavailable(f"no acknowledgement from {address} in {self._timeout_s:g} s")
            )
            self._connection.break_off(self._client, address)

    def close(self) -> None:
        """Says that no more batches come, and waits for the last acknowledgements."""
        with self._write_lock:
            self._finish()
        self._reader.join(self._timeout_s)
        self._end(BrokerUnavailable("the stream was closed"))

    def _finish(self) -> None:
        """Says that no more batches come; whoever calls holds the write lock."""
        with self._state_lock:
            if self._finished or self._broken is not None:
                return
            self._finished = True
        try:
            self._writer.done_writing()
        except _FLIGHT_ERRORS as error:
            self._end(self._reason(error))

    def _read(self) -> None:
        try:
            while (data := self._acks.read()) is not None:
                self._acknowledged(json.loads(data.to_pybytes()))
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

    def _acknowledged(self, ack: dict[str, object]) -> None:
        with self._state_lock:
            if not self._in_flight or self._in_flight[0].number != ack["number"]:
                return  # expired meanwhile: it was settled then
            batch = self._in_flight.popleft()
        error = ack.get("error")
        offset = ack.get("offset")
        batch.settle(
            int(str(offset)) if offset is not None else -1,
            from_wire(error) if isinstance(error, dict) else None,
        )

    def _reason(self, error: Exception) -> IsologError:
        return self._connection.translated(error, self._client)

    def _end(self, reason: IsologError) -> None:
        with self._state_lock:
            if self._broken is None:
                self._broken = reason
            left = list(self._in_flight)
            self._in_flight.clear()
        for batch in left:
            batch.settle(-1, self._outcome(batch, reason))

    def _outcome(self, batch: _InFlight, reason: IsologError) -> IsologError:
        if not isinstance(reason, _NO_ANSWER):
            return reason  # the broker ended the stream: what it did not answer it did not take
        return UnknownOutcome(
            f"{self._topic.name}/{batch.partition}: {batch.rows} records were sent and not"
            f" acknowledged: {reason.message}",
            topic=self._topic.name,
            partition=batch.partition,
        )
