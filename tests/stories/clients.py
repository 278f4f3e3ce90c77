"""The client of a story: one record, its answer from the leader, and its future.

All of it is the shipped code: the messages, the settlements and the futures of ``client.writing``.
"""

from __future__ import annotations

from typing import Final

import pyarrow as pa

from isolog.errors import IsologError, UnknownOutcome
from spark_stream.broker.partition.waiters import Appended, unknown_outcome
from spark_stream.client.writing.lanes import Outgoing, settlement_of
from spark_stream.client.writing.promises import Failures, Outcomes, RecordPromise
from spark_stream.consistency.ids import Offset
from spark_stream.wire.stream_messages import Ack, Acknowledged, BatchRefused, ack_from_bytes

TOPIC: Final = "t"
_ROW: Final = pa.record_batch({"value": [b""]})


class Sent:
    """A record that a producer has sent. ``failures`` are the producer's."""

    def __init__(self, name: str, offset: int, failures: Failures) -> None:
        self.name = name
        self._appended = Appended(Offset(offset), 1)
        outcomes = Outcomes(failures)
        self._future = RecordPromise(outcomes, 0)
        self._batch = Outgoing(_ROW, 0, 0.0, lambda each: outcomes.settle(0, 1, each))

    def acknowledge(self) -> str:
        """Return the result of the future after the leader has acknowledged the record."""
        return self._result(
            Acknowledged(
                number=0,
                partition=0,
                offset=self._appended.offset,
                count=1,
                partitions=1,
                leader_epoch=0,
                duplicate=False,
            )
        )

    def give_up(self, why: str) -> str:
        """Return the result of the future after an answer with an unknown outcome."""
        error = unknown_outcome(self._appended, TOPIC, 0, why)
        return self._result(BatchRefused(number=0, partition=0, error=error, count=0))

    def _result(self, ack: Ack) -> str:
        answer = ack_from_bytes(ack.to_bytes())
        self._batch.settle_all(settlement_of(TOPIC, self._batch, answer, None))
        try:
            return f"{self.name}: acknowledged, offset {self._future.result(0).offset}"
        except UnknownOutcome:
            return f"{self.name}: outcome unknown"
        except IsologError as failed:
            return f"{self.name}: {failed.code}"
