"""``connect()`` for asyncio, the log that it opens, its consumers and its producers.

Waiting for records needs a thread. It is done in slices, so that a cancelled task leaves the
consumer usable a moment later. The task takes the records after the wait, and only then the
position moves. So a cancelled task loses no record.
"""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import (
    AsyncGenerator,
    AsyncIterator,
    Awaitable,
    Callable,
    Coroutine,
    Generator,
    Iterator,
    Sequence,
)
from concurrent.futures import Future
from contextlib import asynccontextmanager, contextmanager, suppress
from datetime import datetime
from functools import wraps
from typing import Any, Final, ParamSpec, TypeVar

import pyarrow as pa

from spark_stream.aio.calls import A, Asynchronous, Closable, Opener, Worker, on_a_thread
from spark_stream.client import log as blocking
from spark_stream.client.reading.columns import View
from spark_stream.client.reading.consumer import Consumer
from spark_stream.client.reading.fetching import Fetched
from spark_stream.client.reading.records import RECORDS_MAX, Patience, checked_records_max
from spark_stream.client.topics import Key, Target
from spark_stream.client.values import Record, Written
from spark_stream.client.writing.batches import AnyHeaders, ArrowData, as_bytes
from spark_stream.client.writing.producer import Producer
from spark_stream.errors import BufferFull, InvalidRequest
from spark_stream.transport.lifetime import ProcessBound

P = ParamSpec("P")
T = TypeVar("T")
S = TypeVar("S", bound=Closable)
_SLICE_S: Final = 0.5


def _opens(
    function: Callable[P, S], kind: Callable[[S], A], under_way: set[asyncio.Task[Any]]
) -> Callable[P, Opener[A]]:
    """Return a function that calls this one on a thread, and wraps its result.

    If the caller was cancelled, the object is closed: on the thread, because the loop may end, or
    here, if it was opened before the cancellation reached the thread. ``under_way``: the running
    tasks.
    """

    @wraps(function)
    def opener(*args: P.args, **kwargs: P.kwargs) -> Opener[A]:
        async def open_object() -> A:
            is_wanted = True

            def open_on_thread() -> S:
                found = function(*args, **kwargs)
                if not is_wanted:
                    found.close()
                return found

            def begin(work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
                task = asyncio.create_task(work)
                under_way.add(task)
                task.add_done_callback(under_way.discard)
                return task

            call = begin(asyncio.to_thread(open_on_thread))
            try:
                return kind(await asyncio.shield(call))
            except asyncio.CancelledError:
                is_wanted = False
                begin(_close(call))
                raise

        return Opener(open_object)

    return opener


async def _close(call: asyncio.Task[Any]) -> None:
    with suppress(Exception):  # it was not opened
        await asyncio.to_thread((await call).close)


class AsyncLog(Asynchronous[blocking.Log]):
    """A connection to a log, for the tasks of one event loop. Close it, or use ``async with``.

    :func:`connect` returns it. Its methods are those of the blocking client, as coroutines. A call
    runs on a thread.

    Examples:
        >>> async def main():
        ...     async with isolog.aio.connect(path="async-log") as log:
        ...         await log.create_topic("greetings")
        ...         async with log.producer() as producer:
        ...             await producer.send("greetings", b"hello")
        ...         return (await log.read("greetings")).num_rows
        >>> asyncio.run(main())
        1
    """

    create_topic = on_a_thread(blocking.Log.create_topic)
    alter_topic = on_a_thread(blocking.Log.alter_topic)
    delete_topic = on_a_thread(blocking.Log.delete_topic)
    trim = on_a_thread(blocking.Log.trim)
    plan_trim = on_a_thread(blocking.Log.plan_trim)
    topics = on_a_thread(blocking.Log.topics)
    describe = on_a_thread(blocking.Log.describe)

    cluster = on_a_thread(blocking.Log.cluster)
    move_replicas = on_a_thread(blocking.Log.move_replicas)
    cancel_moves = on_a_thread(blocking.Log.cancel_moves)
    elect_preferred_leaders = on_a_thread(blocking.Log.elect_preferred_leaders)
    decommission = on_a_thread(blocking.Log.decommission)
    recommission = on_a_thread(blocking.Log.recommission)
    status = on_a_thread(blocking.Log.status)

    transactions = on_a_thread(blocking.Log.transactions)
    describe_transaction = on_a_thread(blocking.Log.describe_transaction)
    abort_transaction = on_a_thread(blocking.Log.abort_transaction)
    sinks = on_a_thread(blocking.Log.sinks)
    delete_sink = on_a_thread(blocking.Log.delete_sink)
    consumers = on_a_thread(blocking.Log.consumers)
    describe_consumer = on_a_thread(blocking.Log.describe_consumer)
    delete_consumer = on_a_thread(blocking.Log.delete_consumer)
    reset_consumer = on_a_thread(blocking.Log.reset_consumer)
    create_lake = on_a_thread(blocking.Log.create_lake)
    lakes = on_a_thread(blocking.Log.lakes)
    describe_lake = on_a_thread(blocking.Log.describe_lake)
    alter_lake = on_a_thread(blocking.Log.alter_lake)
    drop_lake = on_a_thread(blocking.Log.drop_lake)

    read = on_a_thread(blocking.Log.read)

    def __init__(self, log: blocking.Log) -> None:
        super().__init__(log)
        self._openings = set[asyncio.Task[Any]]()

    def producer(self, **settings: Any) -> Opener[AsyncProducer]:
        """Open a producer: ``async with log.producer() as producer``.

        Args:
            settings: The settings of ``isolog.Log.producer``.
        """
        return _opens(self.sync.producer, AsyncProducer, self._openings)(**settings)

    def consumer(
        self, topics: str | list[str] | re.Pattern[str], **settings: Any
    ) -> Opener[AsyncConsumer]:
        """Open a consumer: ``async with log.consumer("orders") as consumer``.

        Args:
            topics: A name, a list of names, or a compiled pattern that matches whole names.
            settings: The other options of ``isolog.Log.consumer``.
        """
        return _opens(self.sync.consumer, AsyncConsumer, self._openings)(topics, **settings)

    async def _end(self, close: Callable[[], object]) -> None:
        await asyncio.gather(*self._openings, return_exceptions=True)
        await super()._end(close)


connect = _opens(blocking.connect, AsyncLog, set())


class AsyncConsumer(Asynchronous[Consumer]):
    """A consumer, for one task at a time. Close it, or use it with ``async with``.

    Functions that are given as ``on_assigned`` and ``on_revoked`` are called on a thread.
    """

    def __init__(self, sync_consumer: Consumer) -> None:
        super().__init__(sync_consumer)
        self._worker = Worker("isolog-aio-consumer")
        self._is_awaited = False

    @property
    def name(self) -> str | None:
        """The name under which positions are stored. None without one."""
        return self.sync.name

    @property
    def group(self) -> str | None:
        """The consumer group of which this is a member. None without a group."""
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
            timeout: Seconds to wait for the first record. Without a value it waits without a limit.
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
                "another task is waiting for records of this consumer",
                hint="Use a consumer in one task at a time, or create one for each task.",
            )
        self._is_awaited = True
        try:
            yield
        finally:
            self._is_awaited = False

    async def _fetched(
        self, view_of: Callable[[str], View], until: str | None, timeout: float | None
    ) -> AsyncGenerator[tuple[Key, Fetched]]:
        """Yield fetched batches, until ``timeout`` seconds pass without a record."""
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


class SentWrite(ProcessBound, Awaitable[Written]):
    """The pending acknowledgement of a write. Await it any number of times, or call ``flush``.

    Awaiting it returns an ``isolog.Written``. An error that was raised here is not raised again by
    ``flush``.
    """

    def __init__(self, promise: Future[Written]) -> None:
        self._promise = promise

    def done(self) -> bool:
        """Return whether the write is acknowledged or has failed."""
        return self._promise.done()

    def __await__(self) -> Generator[Any, None, Written]:
        if not self._promise.done():
            loop = asyncio.get_running_loop()
            settled = loop.create_future()

            def wake(_: Future[Written]) -> None:
                with suppress(RuntimeError):  # the loop is closed
                    loop.call_soon_threadsafe(_settle, settled)

            self._promise.add_done_callback(wake)
            yield from settled
        return self._promise.result()


def _settle(waiter: asyncio.Future[None]) -> None:
    if not waiter.done():
        waiter.set_result(None)


class AsyncProducer(Asynchronous[Producer]):
    """A producer, for the tasks of one event loop. Close it, or use it with ``async with``.

    Records of a partition are in the order in which :meth:`send` and :meth:`append` were called.
    """

    def __init__(self, sync_producer: Producer) -> None:
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
        """Return the write for the worker. It fails if earlier writes took all of its time."""
        until = time.monotonic() + self.sync.timeout_s

        def call(*args: P.args, **kwargs: P.kwargs) -> Future[Written]:
            if time.monotonic() > until:
                raise BufferFull(
                    "the buffer is full: earlier writes of this producer are waiting for room"
                )
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

        A cancelled task aborts it, unless the commit has begun.
        """
        transaction = self.sync.transaction()
        try:
            await self._worker.call(transaction.__enter__)
            yield
            await self._worker.call(transaction.__exit__, None, None, None)
        except BaseException as error:
            if self._lifetime.is_over:  # a forked child leaves the block
                raise
            # This has no effect if the transaction has not begun, or has ended.
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
        """Abort the transaction. Its unacknowledged writes fail with TransactionAborted."""
        await self._worker.call(self.sync.abort_transaction)

    async def commit_position(self, consumer: AsyncConsumer) -> None:
        """Store the position of a consumer if and when the transaction commits.

        Args:
            consumer: A consumer with a name, or a member of a group without ``auto_commit``.
        """
        await self._worker.call(self.sync.commit_position, consumer.sync)
