"""The producer: it writes records (``send``, which gathers batches) or Arrow batches (``append``).

Every batch has its producer's id and a sequence number, so a retry after a lost answer is
idempotent: the batch is in the log once.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Sequence
from concurrent.futures import Future
from contextlib import AbstractContextManager
from datetime import datetime
from time import time_ns
from types import TracebackType
from typing import Final, Protocol, Self

import pyarrow as pa

from spark_stream.client.connecting.connection import ClusterConnection
from spark_stream.client.options import check_setting, level
from spark_stream.client.topics import TopicsClient
from spark_stream.client.values import Written, timestamp_us
from spark_stream.client.writing.batches import (
    UNSENDABLE,
    AnyHeaders,
    ArrowData,
    as_bytes,
    as_columns,
    as_headers,
    check_partition,
    checked_size,
    completed,
    fitted_to,
    one_batch,
)
from spark_stream.client.writing.lanes import ProducerIdentity
from spark_stream.client.writing.loop import Settings
from spark_stream.client.writing.partitioner import routed
from spark_stream.client.writing.promises import RecordPromise
from spark_stream.client.writing.sender import Sender
from spark_stream.consistency.isolation import PRODUCER_LEVELS
from spark_stream.consistency.transactions.transactions import PositionOf
from spark_stream.errors import (
    InvalidTransaction,
    IsologError,
    RecordTooLarge,
    SchemaMismatch,
    UnknownPartition,
)
from spark_stream.schema.keys import key_columns
from spark_stream.schema.schemas import fitted, is_default, of_topic
from spark_stream.structs import INT64_MAX
from spark_stream.transport.lifetime import ProcessBound, check_may_wait, check_not_inside
from spark_stream.wire.limits import BATCH_BYTES_MAX
from spark_stream.wire.topic_messages import TopicDescription
from spark_stream.wire.transaction_messages import Branch

__all__ = ["Branch", "Producer"]

LINGER_MS: Final = 0.0
LINGER_MS_MAX: Final = 3_600_000
BATCH_BYTES: Final = 1 << 20
BUFFER_BYTES: Final = 64 << 20
TIMEOUT_MS: Final = 30_000
TIMEOUT_MS_MAX: Final = 3_600_000
_RECORD_FIXED_BYTES: Final = 8  # the timestamp
_new: Final = object.__new__  # a call of `RecordPromise` takes longer


class Positioned(Protocol):
    """A consumer with a name or a group, whose position a transaction can store."""

    def places(self, connection: ClusterConnection) -> list[PositionOf]:
        """Return its position by partition. Raise InvalidOption without a name."""

    def check_owner(self) -> None:
        """Raise ConsumerFenced if another consumer has taken over the name."""

    def owner(self) -> dict[str, str]:
        """Return ``{name: instance}``, the required owner of the name when positions are stored."""

    def record_committed(self, places: Iterable[PositionOf]) -> None:
        """Record that these positions are stored."""


class Producer(ProcessBound):
    """An idempotent producer, for any thread. Use it as a context manager, or call :meth:`close`.

    :meth:`Log.producer` returns it. Each batch has the id of the producer and a sequence number, so
    a retry never writes a duplicate. A producer that is dropped without :meth:`close` sends its
    pending records and logs a failure as a warning. A program that ends does the same, for up to
    ten seconds.

    Args:
        isolation: ``"read_uncommitted"``: records are acknowledged when the leader has appended
            them. ``"read_committed"``: when they are below the high watermark.
        linger_ms: Milliseconds that a record waits for others. With 0, records that arrive while an
            earlier batch is in progress are still sent together.
        batch_bytes: The size at which a batch is sent immediately.
        buffer_bytes: Unacknowledged bytes at which a caller waits.
        timeout_ms: Milliseconds until the outcome of an unacknowledged record is unknown, retries
            included, and the longest wait of a caller for room in the buffer.

    Raises:
        InvalidOption: The value of a setting is not allowed.
    """

    def __init__(
        self,
        connection: ClusterConnection,
        topics: TopicsClient,
        *,
        isolation: str = "read_uncommitted",
        linger_ms: float = LINGER_MS,
        batch_bytes: int = BATCH_BYTES,
        buffer_bytes: int = BUFFER_BYTES,
        timeout_ms: int = TIMEOUT_MS,
        branch: Branch | None = None,
    ) -> None:
        found = level(isolation, PRODUCER_LEVELS)
        check_setting("linger_ms", linger_ms, 0, LINGER_MS_MAX)
        check_setting("batch_bytes", batch_bytes, 1, BATCH_BYTES_MAX // 2)
        check_setting("buffer_bytes", buffer_bytes, 1, INT64_MAX)
        check_setting("timeout_ms", timeout_ms, 1, TIMEOUT_MS_MAX)
        settings = Settings(found, linger_ms / 1000, batch_bytes, buffer_bytes, timeout_ms)
        self._connection = connection
        self._topics = topics
        self._timeout_s = timeout_ms / 1_000
        # The loop refers to the sender, so the sender must not hold the producer: it would never be
        # dropped.
        self._sender = Sender(connection, topics, settings)
        if branch is not None:
            self._sender.write_as(*author_of(branch))
        # Bound once: `send` uses them for every record.
        self._open = self._sender.open_batches
        self._lock = self._sender.buffer.lock
        self._holds_lock = self._lock._is_owned  # type: ignore[attr-defined]
        self._dropped = weakref.finalize(self, self._sender.drop)
        self._dropped.atexit = False
        self._closed = False

    # -- writing --------------------------------------------------------------------------------

    def send(
        self,
        topic: str,
        value: bytes | str | None,
        *,
        key: bytes | str | None = None,
        headers: AnyHeaders | None = None,
        partition: int | None = None,
        timestamp: int | datetime | None = None,
    ) -> Future[Written]:
        """Send one record to a topic with Kafka's columns.

        The future has the error if the record is refused.

        Args:
            topic: The name of the topic.
            value: The value. Text is encoded as UTF-8.
            key: The key. Records with equal keys go to one partition.
            headers: A mapping of names to bytes, or a list of ``(name, bytes)``.
            partition: The partition, by default that of the key. Records without a key go to the
                partitions in turn.
            timestamp: Milliseconds since 1970, or a datetime (in UTC if it has no zone), by default
                the present time.

        Returns:
            A future of the acknowledgement.

        Raises:
            TypeError: The value or the key is neither bytes, str nor None.
            BufferFull: The buffer had no room for ``timeout_ms``.

        Examples:
            >>> topic = log.create_topic("clicks", partitions=3)
            >>> with log.producer() as producer:
            ...     future = producer.send("clicks", b"home", key=b"user-1", headers={"v": b"1"})
            >>> written = future.result()
            >>> written.topic, written.count
            ('clicks', 1)
        """
        # Most records are simple, and there are many. `Pending.add` is inlined here: change both.
        if not isinstance(value, bytes):
            value = as_bytes("value", value)
        size = _RECORD_FIXED_BYTES if value is None else _RECORD_FIXED_BYTES + len(value)
        if key is not None:
            if not isinstance(key, bytes):
                key = as_bytes("key", key) or b""
            size += len(key)
        plain = partition is None or type(partition) is int
        if plain and headers is None and timestamp is None:
            if self._holds_lock():
                check_not_inside(self._lock)
            with self._lock:
                pending = self._open.get(topic)
                if (
                    pending is not None
                    and size < pending.left
                    and size <= pending.largest
                    and (partition is None or 0 <= partition < pending.partitions)
                ):
                    pending.left -= size
                    values = pending.values
                    promise: RecordPromise = _new(RecordPromise)
                    promise._outcomes, promise.row = pending.outcomes, len(values)
                    try:
                        if partition != pending.partition:
                            pending.runs.append((promise.row, partition))
                            pending.partition = partition
                        pending.keys.append(key)
                        values.append(value)
                        pending.moments.append(time_ns())
                    except BaseException:  # of a signal handler
                        pending.cut(promise.row)
                        raise
                    return promise
        try:
            listed = as_headers(headers)
            size += sum(len(name.encode()) + len(data or b"") for name, data in listed or ())
            moment = None if timestamp is None else timestamp_us(timestamp)
            known = self._checked(topic, partition, size)
            partition = None if partition is None else int(partition)
        except IsologError as error:
            return self._sender.settled(error)
        return self._sender.send(known, key, value, listed, moment, partition, size)

    @property
    def timeout_s(self) -> float:
        """The limit for a wait for room, and for an acknowledgement, in seconds."""
        return self._timeout_s

    def takes_at_once(self, topic: str, size: int) -> bool:
        """Return whether :meth:`send` would not wait with ``size`` bytes and without a partition.

        This is so if the topic is cached, the record is not too large, and there is room for it.
        """
        size += _RECORD_FIXED_BYTES
        if not (self._topics.is_known(topic) and self._sender.buffer.has_room(size)):
            return False
        return size <= int(self._topics.known(topic).config["max.record.bytes"])

    def append(
        self,
        topic: str,
        batch: ArrowData,
        partition: int | None = None,
        key: str | Sequence[str] | None = None,
    ) -> Future[Written]:
        """Append an Arrow batch or table, or a data frame, without a loop over its rows.

        Columns are cast to the types of the topic if no value changes. Categories become their
        values, and sparse columns of pandas become dense. Records with equal keys go to one
        partition, in their order. The future has the error if the batch is refused.

        Args:
            topic: The name of the topic.
            batch: A ``pyarrow.RecordBatch`` or ``pyarrow.Table``, or a data frame of pandas, polars
                or another library with Arrow's C interface. In a topic with Kafka's columns
                ``key``, ``headers`` and ``timestamp`` may be missing.
            partition: The partition of all records. By default the key decides. Batches without a
                key go to the partitions in turn.
            key: The key column or columns of a typed topic without the setting ``partition.by``.

        Returns:
            A future of the acknowledgement.

        Raises:
            TypeError: ``batch`` is neither Arrow data nor a data frame, or ``key`` is not text.
            BufferFull: The buffer had no room for ``timeout_ms``.

        Examples:
            >>> topic = log.create_topic("sales", schema="shop string, total double", partitions=4)
            >>> rows = pa.table({"shop": ["a", "b", "a"], "total": [1.0, 2.0, 3.0]})
            >>> with log.producer() as producer:
            ...     written = producer.append("sales", rows, key="shop").result()
            >>> written.count
            3
        """
        key_names = as_columns(key)
        try:
            known, rows = self._fitted(topic, batch)
            columns: Sequence[str] = ()
            if partition is None or key_names:
                with of_topic(topic):
                    columns = key_columns(known.schema, known.partition_by, key_names)
            size = checked_size(rows)
            if partition is not None:
                known = self._having(known, partition)
                partition = int(partition)
        except IsologError as error:
            return self._sender.settled(error)
        if rows.num_rows == 0:
            return self._sender.settled(Written(topic, partition or 0, 0, 0))
        count = len(known.partitions)
        keyless = self._sender.keyless(count)
        if partition is not None or not columns:
            parts = [(keyless if partition is None else partition, rows, 0)]
        else:
            parts = routed(rows, columns, count, keyless)
        return self._sender.append(known, parts, size)

    def _fitted(self, topic: str, batch: ArrowData) -> tuple[TopicDescription, pa.RecordBatch]:
        """Return the topic, and the batch in its schema, or raise SchemaMismatch."""
        known = self._topics.known(topic)
        if is_default(known.schema):
            with of_topic(topic):
                return known, fitted(completed(one_batch(batch, known.schema)), known.schema)
        try:
            return known, fitted_to(one_batch(batch, known.schema), known)
        except SchemaMismatch:
            now = self._topics.describe(topic)  # its schema may have been altered
            if now.schema_version == known.schema_version and now.id == known.id:
                raise
        return now, fitted_to(one_batch(batch, now.schema), now)

    def _checked(self, topic: str, partition: int | None, size: int) -> TopicDescription:
        """Return the topic if it accepts such a record."""
        known = self._topics.known(topic)
        if not is_default(known.schema):
            raise SchemaMismatch(
                f"topic {topic!r} is typed: {', '.join(known.schema.names)}",
                hint="Use append() with a batch of these columns.",
                topic=topic,
            )
        if partition is not None:
            known = self._having(known, partition)
        limit = int(known.config["max.record.bytes"])
        if size > limit:
            known = self._topics.describe(topic)  # the limit may have been raised
            limit = int(known.config["max.record.bytes"])
        if size > limit:
            raise RecordTooLarge(
                f"the record has {size} bytes, the topic's max.record.bytes is {limit}",
                hint=UNSENDABLE if size > BATCH_BYTES_MAX else None,
                topic=topic,
            )
        return known

    def _having(self, known: TopicDescription, partition: int) -> TopicDescription:
        """Return the topic if it has this partition, or raise UnknownPartition."""
        try:
            check_partition(known, partition)
        except UnknownPartition:
            known = self._topics.describe(known.name)  # it may have been added
            check_partition(known, partition)
        return known

    # -- transactions: only a TransactionalProducer has them --------------------------------------

    def transaction(self) -> AbstractContextManager[None]:
        """Raise InvalidTransaction: this producer has no ``transactional_id``."""
        raise _not_transactional("transaction")

    def begin_transaction(self) -> None:
        """Raise InvalidTransaction: this producer has no ``transactional_id``."""
        raise _not_transactional("begin_transaction")

    def commit_transaction(self) -> None:
        """Raise InvalidTransaction: this producer has no ``transactional_id``."""
        raise _not_transactional("commit_transaction")

    def abort_transaction(self) -> None:
        """Raise InvalidTransaction: this producer has no ``transactional_id``."""
        raise _not_transactional("abort_transaction")

    def commit_position(self, consumer: Positioned) -> None:
        """Raise InvalidTransaction: this producer has no ``transactional_id``."""
        raise _not_transactional("commit_position")

    # -- ending ---------------------------------------------------------------------------------

    def flush(self, timeout: float | None = None) -> None:
        """Wait until all earlier records are acknowledged or have failed. Raise the first error.

        An error that was read from its future is not raised again.

        Args:
            timeout: Seconds to wait, by default without a limit.

        Raises:
            TimeoutError: Records are still pending after ``timeout``.
            IsologError: The first failure of a record.
        """
        self._sender.flush(timeout)

    def close(self) -> None:
        """Flush, then close the streams. Raise the errors of :meth:`flush`.

        This has no effect in a forked child, whose parent sends the records, and after the end of
        the program, which has sent them.
        """
        if self._closed or self._connection.lifetime.is_over:
            return
        check_may_wait()
        self._closed = True
        self._dropped.detach()
        try:
            self.flush()
        finally:
            self._sender.close()
        self.flush()  # records that other threads have sent during the first flush

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        try:
            self.close()
        except IsologError:
            if error is None:  # else the first error is more useful
                raise


def _not_transactional(call: str) -> InvalidTransaction:
    return InvalidTransaction(
        f"{call}() needs a producer with a transactional id",
        hint="Create it with log.producer(transactional_id=...).",
    )


def author_of(branch: Branch) -> tuple[ProducerIdentity, str]:
    """Return the identity that writes under the branch, and its transactional id."""
    identity = ProducerIdentity(branch.producer_id, branch.epoch, branch.number)
    return identity, branch.transactional_id
