"""The writers of a gateway's connection to the brokers."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from typing import Final

import pyarrow as pa

from spark_stream.client.log import Log
from spark_stream.client.values import Written
from spark_stream.client.writing.producer import Producer
from spark_stream.client.writing.stamped import StampedWriter
from spark_stream.consistency.isolation import Isolation
from spark_stream.consistency.partition.producers import Stamp
from spark_stream.errors import InternalError, IsologError, RequestTimeout, UnknownOutcome
from spark_stream.loggers import logger_of
from spark_stream.transport.lifetime import new_lock
from spark_stream.wire.stream_messages import Ack, BatchRefused
from spark_stream.wire.topic_messages import TopicDescription

logger = logger_of(__name__)

ACKNOWLEDGED_MS: Final = 30_000
"""The longest wait of a leader for its followers."""

LEVELS: Final = {
    -1: Isolation.READ_COMMITTED,
    0: Isolation.READ_UNCOMMITTED,
    1: Isolation.READ_UNCOMMITTED,
}
"""The level of an acknowledgement, by the client's ``acks``: -1 waits for all in-sync replicas."""

Pending = Callable[[float], int]
"""A function that waits for an append, up to some seconds, and returns its first offset."""


class Producers:
    """The writers of a gateway's connection to the brokers, two for each level. Thread-safe."""

    def __init__(self, log: Log) -> None:
        self._log = log
        self._lock = new_lock(is_brief=False)
        self._by_level: dict[Isolation, Producer] = {}
        self._stamped = {
            each: StampedWriter(log._topics, each, ACKNOWLEDGED_MS) for each in {*LEVELS.values()}
        }

    def append(
        self,
        topic: TopicDescription,
        partition: int,
        rows: pa.RecordBatch,
        level: Isolation,
        stamp: Stamp | None,
        transactional_id: str | None = None,
    ) -> Pending:
        """Append a batch. Return a function that waits for its first offset.

        ``stamp``: that of its producer, or None for a batch of a producer of this gateway.
        """
        if stamp is None:
            return _offset_of(self.get(level).append(topic.name, rows, partition=partition))
        writer = self._stamped[level]
        return offset_in(writer.append(topic, partition, rows, stamp, transactional_id).result)

    def get(self, level: Isolation) -> Producer:
        """Return the producer of a level."""
        with self._lock:
            found = self._by_level.get(level)
            if found is None:
                found = self._by_level[level] = self._log.producer(isolation=level.value)
            return found

    def close(self) -> None:
        """Flush and close all writers. Each record has its answer already."""
        for each in self._by_level.values():
            try:
                each.close()
            except IsologError as error:
                logger.debug("a producer of the gateway was closed with an error: %s", error)
        for writer in self._stamped.values():
            writer.close()


def _offset_of(written: Future[Written]) -> Pending:
    return lambda timeout_s: written.result(timeout_s).offset


def offset_in(answer: Callable[[float], Ack]) -> Pending:
    """Return a function that waits for the answer to a stamped batch, and returns its offset.

    A client repeats such a batch if its outcome is unknown: the leader recognises a duplicate.
    """

    def offset(timeout_s: float) -> int:
        try:
            ack = answer(timeout_s)
            if isinstance(ack, BatchRefused):
                raise ack.error
        except (UnknownOutcome, InternalError) as error:
            logger.warning("a batch of a Kafka client may be in the log: %s", error)
            raise RequestTimeout(error.message) from None
        return ack.offset

    return offset
