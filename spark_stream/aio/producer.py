"""Writes records, for asyncio."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Generator, Sequence
from concurrent.futures import Future
from contextlib import asynccontextmanager, suppress
from datetime import datetime
from typing import Any, ParamSpec

from spark_stream.aio.calls import Asynchronous, Worker
from spark_stream.aio.consumer import AsyncConsumer
from spark_stream.client.values import Written
from spark_stream.client.writing import producer as sync
from spark_stream.client.writing.batches import AnyHeaders, ArrowData, as_bytes
from spark_stream.errors import BufferFull
from spark_stream.transport.lifetime import ProcessBound

P = ParamSpec("P")


class SentWrite(ProcessBound, Awaitable[Written]):
    """The pending acknowledgement of a write. Await it any number of times, or call ``flush``.

    Awaiting it returns an ``isolog.Written``. An error that was raised here is not raised again by
    ``flush``.
    """

    def __init__(self, promise: Future[Written]) -> None:
        self._promise = promise

    def done(self) -> bool:
        """Return whether the write is acknowledged, or has failed."""
        return self._promise.done()

    def __await__(self) -> Generator[Any, None, Written]:
        if not self._promise.done():
            loop = asyncio.get_running_loop()
            settled = loop.create_future()

            def wake(_: Future[Written]) -> None:
                with suppress(RuntimeError):  # the loop is closed: nobody waits
                    loop.call_soon_threadsafe(_settle, settled)

            self._promise.add_done_callback(wake)
            yield from settled
        return self._promise.result()


def _settle(waiter: asyncio.Future[None]) -> None:
    if not waiter.done():
        waiter.set_result(None)


class AsyncProducer(Asynchronous[sync.Producer]):
    """A producer, for the tasks of one event loop. Close it, or use it with ``async with``.

    Records of a partition are in the order in which :meth:`send` and :meth:`append` were called.
    """

    def __init__(self, sync_producer: sync.Producer) -> None:
        super().__init__(sync_producer)
        self._worker = Worker("isolog-aio-producer")

    async def send(
        self,
        topic: str,
        value: bytes | str | None,
        *,
        key: bytes | str | None = None,
        headers: AnyHeaders | None = None,
        partition: int | None = None,
        timestamp: int | datetime | None = None,
    ) -> SentWrite:
        """Send one record when the buffer has room. Await the result for its acknowledgement.

        Args:
            topic: The name of the topic.
            value: The value. Text is encoded as UTF-8.
            key: The key. Records with equal keys go to one partition.
            headers: A mapping of names to bytes, or a list of ``(name, bytes)``.
            partition: The partition, by default that of the key.
            timestamp: Milliseconds since 1970, or a datetime (in UTC if it has no zone).
        """
        key, value = as_bytes("key", key), as_bytes("value", value)
        size = len(key or b"") + len(value or b"")
        plain = partition is None and headers is None
        if plain and self._worker.is_idle and self.sync.takes_at_once(topic, size):
            return SentWrite(self.sync.send(topic, value, key=key, timestamp=timestamp))
        return SentWrite(
            await self._worker.call(
                self._in_time(self.sync.send),
                topic,
                value,
                key=key,
                headers=headers,
                partition=partition,
                timestamp=timestamp,
            )
        )

    async def append(
        self,
        topic: str,
        batch: ArrowData,
        partition: int | None = None,
        key: str | Sequence[str] | None = None,
    ) -> SentWrite:
        """Append an Arrow batch or a data frame when the buffer has room for it.

        Args:
            topic: The name of the topic.
            batch: Arrow data or a data frame, as in ``isolog.Producer.append``.
            partition: The partition of all records, by default that of their key.
            key: The key column or columns of a typed topic without the setting ``partition.by``.
        """
        append = self._in_time(self.sync.append)
        return SentWrite(await self._worker.call(append, topic, batch, partition, key))

    def _in_time(self, write: Callable[P, Future[Written]]) -> Callable[P, Future[Written]]:
        """Return the write for the worker: it is refused if those before took all of its time."""
        until = time.monotonic() + self.sync.timeout_s

        def call(*args: P.args, **kwargs: P.kwargs) -> Future[Written]:
            if time.monotonic() > until:
                raise BufferFull("earlier writes of this producer wait for room, too")
            return write(*args, **kwargs)

        return call

    async def flush(self, timeout: float | None = None) -> None:
        """Wait until all earlier records are acknowledged or have failed. Raise the first error.

        Args:
            timeout: Seconds to wait, by default without a limit.

        Raises:
            TimeoutError: Records are still pending after ``timeout``.
        """
        await self._call(self.sync.flush, timeout)

    async def _end(self, close: Callable[[], object]) -> None:
        try:
            await super()._end(close)
        finally:
            self._worker.rest()

    # -- transactions: of a producer with a ``transactional_id`` ----------------------------------

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[None]:
        """Run an ``async with`` block in a transaction: commit it, or abort on an exception.

        A task that is cancelled meanwhile aborts it, unless the commit has begun.
        """
        transaction = self.sync.transaction()
        try:
            await self._worker.call(transaction.__enter__)
            yield
            await self._worker.call(transaction.__exit__, None, None, None)
        except BaseException as error:
            if self._lifetime.is_over:  # a forked child leaves the block
                raise
            # Does nothing if the transaction has not begun, or is over.
            end = self._worker.start(transaction.__exit__, type(error), error, error.__traceback__)
            await asyncio.shield(asyncio.wrap_future(end))
            raise

    async def begin_transaction(self) -> None:
        """Begin a transaction. Later writes belong to it."""
        await self._worker.call(self.sync.begin_transaction)

    async def commit_transaction(self) -> None:
        """Commit. Errors are those of ``isolog.TransactionalProducer.commit_transaction``."""
        await self._worker.call(self.sync.commit_transaction)

    async def abort_transaction(self) -> None:
        """Abort the transaction; its unacknowledged writes fail with TransactionAborted."""
        await self._worker.call(self.sync.abort_transaction)

    async def commit_position(self, consumer: AsyncConsumer) -> None:
        """Store the position of a consumer if and when the transaction commits.

        Args:
            consumer: A consumer with a name, or a member of a group without ``auto_commit``.
        """
        await self._worker.call(self.sync.commit_position, consumer.sync)
