"""Reads the records of topics as they come, for asyncio.

Waiting needs a thread, and is done in slices, so that a task that is cancelled leaves the consumer
usable a moment later. What was waited for is taken in the task: only then the position moves. So a
cancelled task loses no record.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Iterator
from contextlib import contextmanager
from typing import Final

import pyarrow as pa

from spark_stream.aio.calls import Asynchronous, Worker
from spark_stream.client.reading import consumer as sync
from spark_stream.client.reading.columns import View
from spark_stream.client.reading.fetching import Fetched
from spark_stream.client.reading.records import RECORDS_MAX, Patience, checked_records_max
from spark_stream.client.topics import Key, Target
from spark_stream.client.values import Record
from spark_stream.errors import InvalidRequest

_SLICE_S: Final = 0.5


class AsyncConsumer(Asynchronous[sync.Consumer]):
    """A consumer, for one task at a time. Close it, or use it with ``async with``.

    Functions that are given as ``on_assigned`` and ``on_revoked`` are called on a thread.
    """

    def __init__(self, sync_consumer: sync.Consumer) -> None:
        super().__init__(sync_consumer)
        self._worker = Worker("isolog-aio-consumer")
        self._is_awaited = False

    @property
    def name(self) -> str | None:
        """The name under which positions are stored; None if they are not stored."""
        return self.sync.name

    @property
    def group(self) -> str | None:
        """The consumer group of which this is a member; None if it is in none."""
        return self.sync.group

    async def records(
        self, until: str | None = None, timeout: float | None = None
    ) -> AsyncGenerator[Record]:
        """Yield records as they arrive. Errors are those of ``isolog.Consumer.records``.

        Args:
            until: ``"latest"``: end at the present bound of the isolation level.
            timeout: Seconds without a record after which the iteration ends.
        """
        views = self.sync.record_views()
        async for key, fetched in self._fetched(views, until, timeout):
            for record in self.sync.records_of(key, fetched, waits=False):
                yield record

    async def batches(
        self, until: str | None = None, timeout: float | None = None
    ) -> AsyncGenerator[pa.RecordBatch]:
        """Yield Arrow batches as they arrive, each with records of one partition.

        Args:
            until: ``"latest"``: end at the present bound of the isolation level.
            timeout: Seconds without a record after which the iteration ends.
        """
        views = self.sync.batch_views()
        async for key, fetched in self._fetched(views, until, timeout):
            batch = self.sync.batch_of(key, fetched)
            if batch.num_rows:
                yield batch

    async def poll(
        self, timeout: float | None = 0.0, max_records: int = RECORDS_MAX
    ) -> list[Record]:
        """Return the next records of one partition, or an empty list.

        Args:
            timeout: Seconds to wait for the first record. None waits without a limit.
            max_records: The greatest number of records.
        """
        patience, records_max = Patience(timeout), checked_records_max(max_records)
        with self._one_waits():
            while True:
                wait_s = min(_SLICE_S, patience.seconds_left())
                if await self._worker.call(self.sync.wait_for_records, wait_s):
                    found = self.sync.take_records(records_max)
                    if found:
                        return found
                if self.sync.closed or not patience.seconds_left():
                    return []

    @contextmanager
    def _one_waits(self) -> Iterator[None]:
        if self._is_awaited:
            raise InvalidRequest(
                "another task waits for records of this consumer",
                hint="Use a consumer in one task at a time, or make one for each.",
            )
        self._is_awaited = True
        try:
            yield
        finally:
            self._is_awaited = False

    async def _fetched(
        self, view_of: Callable[[str], View], until: str | None, timeout: float | None
    ) -> AsyncGenerator[tuple[Key, Fetched]]:
        """Yield what is fetched, until no record came for ``timeout`` seconds."""
        whole, part = Patience(timeout), Patience(0.0)
        fetches = self.sync.fetches(view_of, until, part)

        def following() -> tuple[Key, Fetched] | bool:
            part.renew(min(_SLICE_S, whole.seconds_left()))
            found = next(fetches, False)
            return True if found is None else found

        try:
            while True:
                with self._one_waits():
                    found = await self._worker.call(following)
                if found is False:
                    return
                if not isinstance(found, bool):
                    yield found
                    if found[1].batch.num_rows:
                        whole.restart()
                elif not whole.seconds_left():
                    return
        finally:
            self._worker.start(fetches.close)

    def position(self) -> dict[Key, int]:
        """Return ``{(topic, partition): offset}`` with the offset of the next record."""
        return self.sync.position()

    async def commit(self) -> None:
        """Store the position under the name or the group. The next consumer continues there."""
        await self._worker.call(self.sync.commit)

    async def seek(self, position: Target) -> None:
        """Move the position. The next record is read from there.

        Args:
            position: As in ``isolog.Consumer.seek``.
        """
        await self._worker.call(self.sync.seek, position)

    async def _end(self, close: Callable[[], object]) -> None:
        self.sync.stop()  # so that the worker is free in a moment
        try:
            await self._worker.call(close)
        finally:
            self._worker.rest()
