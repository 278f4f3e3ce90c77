"""Bounded reads of one partition: fetch after fetch, from the next offset that the last one named.

Each fetch has a size limit and a deadline, so a stopped broker is noticed; a reader that is itself
slow between two batches may outlive the deadline, and then simply asks again from where it was.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.flight as fl

from spark_stream.client.connecting.connection import Connection
from spark_stream.client.reading.columns import Spans, View, offsets_of
from spark_stream.consistency.isolation import Isolation
from spark_stream.errors import IsologError, RequestTimeout
from spark_stream.wire.limits import FETCH_BYTES_DEFAULT
from spark_stream.wire.messages import Fetch
from spark_stream.wire.schemas import empty_batch

_RETRY_PAUSE_S = 0.1


@dataclass(frozen=True, slots=True)
class Fetched:
    """Rows with the view's columns; the first has offset ``base``; read on at ``next``.

    ``spans``, where offsets are missing in between: (first, count) of each run of rows.
    ``partitions``, at the end of a fetch: how many the topic has now.
    """

    partition: int
    base: int
    next: int
    batch: pa.RecordBatch
    spans: Spans | None = None
    partitions: int | None = None

    def offsets(self) -> npt.NDArray[np.int64]:
        """The offset of each row."""
        return offsets_of(self.batch.num_rows, self.base, self.spans)


@dataclass(frozen=True, slots=True)
class Source:
    """What is read: one partition of a topic (of this id), under an isolation, through a view.

    ``epoch``: the leader epoch under which the ends of ranges were seen, where that is known.
    """

    connection: Connection
    view: View
    topic_id: str
    partition: int
    isolation: Isolation
    epoch: int | None = None

    def ticket(self, start: int, end: int | None, wait_ms: int, max_bytes: int) -> fl.Ticket:
        return fl.Ticket(
            Fetch.of(
                topic=self.view.topic,
                topic_id=self.topic_id,
                partition=self.partition,
                start=start,
                end=end,
                isolation=self.isolation,
                columns=self.view.asked,
                max_bytes=max_bytes,
                wait_ms=wait_ms,
                epoch=self.epoch,
            ).to_bytes()
        )


class Cancellation:
    """Ends the fetches of one reader, from any thread.

    Of a Flight reader's methods ``cancel`` is the one that is safe beside a read of another thread.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._reader: fl.FlightStreamReader | None = None
        self.asked = False

    def cancel(self) -> None:
        """Ends the fetch that is under way, and every later one."""
        with self._lock:
            self.asked = True
            if self._reader is not None:
                self._reader.cancel()

    def begin(self, reader: fl.FlightStreamReader) -> None:
        """A fetch begins; it is cancelled at once if that was asked for."""
        with self._lock:
            self._reader = reader
            if self.asked:
                reader.cancel()

    def end(self) -> None:
        """The fetch is over, read to its end or not."""
        with self._lock:
            reader, self._reader = self._reader, None
        if reader is not None:
            reader.cancel()  # nobody reads it: the broker need not go on


def fetch_once(
    source: Source,
    start: int,
    end: int | None,
    wait_ms: int = 0,
    max_bytes: int = FETCH_BYTES_DEFAULT,
    cancellation: Cancellation | None = None,
) -> Iterator[Fetched]:
    """One fetch. The last item has no rows; its ``next`` is where to read on.

    One that is cancelled just ends.

    Raises:
        OffsetOutOfRange, OffsetEvicted, DamagedSegment, UnknownTopic: as the leader says.
        BrokerUnavailable, RequestTimeout: retriable, from the last ``next``.
    """
    connection = source.connection
    client = connection.client()
    timeout = connection.timeout_s + wait_ms / 1000
    ticket = source.ticket(start, end, wait_ms, max_bytes)
    under_way = cancellation or Cancellation()
    try:
        reader = client.do_get(ticket, fl.FlightCallOptions(timeout=timeout))
        under_way.begin(reader)
        while True:
            try:
                chunk = reader.read_chunk()
            except StopIteration:
                return
            facts = json.loads(chunk.app_metadata.to_pybytes())
            base = facts.get("base", facts["next"])
            if chunk.data is None or facts.get("end"):
                yield Fetched(
                    source.partition,
                    base,
                    facts["next"],
                    _empty(source.view),
                    partitions=facts.get("partitions"),
                )
                continue
            spans = facts.get("spans")
            batch = source.view.of_chunk(chunk.data, source.partition, base, spans)
            yield Fetched(source.partition, base, facts["next"], batch, spans)
    except (fl.FlightError, pa.ArrowException, OSError) as error:
        if under_way.asked:
            return
        raise connection.translated(error, client) from error
    finally:
        under_way.end()


def fetch_range(source: Source, start: int, end: int) -> Iterator[Fetched]:
    """All that is visible of ``[start, end)``; returns when the range is done.

    A bound below ``end`` (records that are not visible yet) ends it as well: the last ``next``
    tells.
    """
    position = start
    failing_since: float | None = None
    while position < end:
        before = position
        try:
            for fetched in fetch_once(source, position, end):
                position = fetched.next
                if fetched.batch.num_rows:
                    yield fetched
        except IsologError as error:
            if not error.retriable:
                raise
            now = time.monotonic()
            if position > before:
                failing_since = None
            elif failing_since is None:
                failing_since = now
            if isinstance(error, RequestTimeout) and position == before:
                raise
            if failing_since is not None and now - failing_since > source.connection.timeout_s:
                raise
            time.sleep(_RETRY_PAUSE_S)
            continue
        failing_since = None
        if position == before:
            return


def _empty(view: View) -> pa.RecordBatch:
    return empty_batch(view.schema)
