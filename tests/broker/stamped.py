"""Appends and transactions by plain calls, as a client would make them."""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable
from typing import Any

import pyarrow as pa

from spark_stream.errors import IsologError, from_wire
from spark_stream.transport.client import ClientChannel
from spark_stream.wire.messages import APPEND
from tests.support import CALL_S, NUMBERS, act, fetched, numbers, typed_errors


class Appender:
    """A stream of appends. Its first batch has number 0, the next one 1."""

    def __init__(
        self, channel: ClientChannel, topic: str = "t", owner: str | None = None, **asked: Any
    ) -> None:
        """Open the stream. ``asked`` may replace the topic's schema, and has further fields."""
        schema: pa.Schema = asked.pop("schema", NUMBERS)
        asked |= {} if owner is None else {"transactional_id": owner}
        request = json.dumps({"topic": topic, **asked}).encode()
        self._stream = channel.open(APPEND, request, memoryview(schema.serialize()))
        self._number = 0

    def send(self, partition: int, batch: pa.RecordBatch | None = None, **envelope: Any) -> None:
        """Send a batch, or a record with the batch's number. ``envelope`` has further fields."""
        header = {"partition": partition, "number": self._number, **envelope}
        sent = numbers(self._number, 1) if batch is None else batch
        with typed_errors():
            body = memoryview(sent.serialize())
            self._stream.send(json.dumps(header).encode(), body, timeout_s=CALL_S)
        self._number += 1

    def ack(self) -> dict[str, Any]:
        """Return the next acknowledgement."""
        with typed_errors():
            received = self._stream.receive(CALL_S)
        assert received is not None
        return dict(json.loads(bytes(received.header)))

    def append(self, partition: int, batch: pa.RecordBatch, **envelope: Any) -> dict[str, Any]:
        """Send a batch, and return its acknowledgement."""
        self.send(partition, batch, **envelope)
        return self.ack()

    def put(
        self,
        first: int,
        count: int,
        producer: int,
        sequence: int,
        *,
        epoch: int = 0,
        transaction: int | None = None,
        partition: int = 0,
    ) -> dict[str, Any]:
        """Send a batch with a stamp, and return its acknowledgement."""
        stamp: dict[str, Any] = {"producer_id": producer, "epoch": epoch, "sequence": sequence}
        if transaction is not None:
            stamp["transaction"] = transaction
        return self.append(partition, numbers(first, count), stamp=stamp)

    def refused(self, *args: int, **options: Any) -> IsologError:
        """Return the error of such a put."""
        ack = self.put(*args, **options)
        assert "error" in ack, ack
        return from_wire(ack["error"])

    def close(self) -> None:
        """Send no more batches."""
        self._stream.send(b"", end=True)


class Owner:
    """A transactional id with its own instance, and its open transaction."""

    def __init__(self, channel: ClientChannel, name: str = "", timeout_ms: int = 60_000) -> None:
        self.channel = channel
        self.name = name or f"owner-{uuid.uuid4().hex[:8]}"
        self.instance = uuid.uuid4().hex
        act(
            channel,
            "init-transactions",
            transactional_id=self.name,
            instance=self.instance,
            timeout_ms=timeout_ms,
        )
        self.number = self.after = -1
        self._sequences: dict[tuple[str, int, int], int] = {}

    @property
    def who(self) -> dict[str, Any]:
        return {"transactional_id": self.name, "instance": self.instance}

    def begin(self) -> Owner:
        facts = act(self.channel, "begin-transaction", **self.who, after=self.after)
        self.number, self.producer, self.epoch = (
            facts["number"],
            facts["producer_id"],
            facts["epoch"],
        )
        self.after = self.number
        self._sequences.clear()
        return self

    def put(
        self, topic: str, first: int, count: int, *, partition: int = 0, producer: int | None = None
    ) -> dict[str, Any]:
        """Appends in the open transaction, on a separate stream."""
        who = self.producer if producer is None else producer
        place = (topic, partition, who)
        sequence = self._sequences.get(place, -1) + 1
        self._sequences[place] = sequence
        stream = Appender(self.channel, topic, self.name)
        ack = stream.put(
            first,
            count,
            who,
            sequence,
            epoch=self.epoch if producer is None else 0,
            transaction=self.number,
            partition=partition,
        )
        stream.close()
        return ack

    def commit(self, **more: Any) -> dict[str, Any]:
        fields = {"number": self.number, "branches": [self.producer]} | more
        return act(self.channel, "commit-transaction", **self.who, **fields)

    def abort(self) -> dict[str, Any]:
        return act(self.channel, "abort-transaction", **self.who, number=self.number)

    def described(self) -> dict[str, Any]:
        return act(self.channel, "describe-transaction", transactional_id=self.name)


def refused(call: Callable[[], object]) -> IsologError:
    """Return the typed error of a call."""
    try:
        call()
    except IsologError as error:
        return error
    raise AssertionError("the call was not refused")


def seen(channel: ClientChannel, topic: str, level: str, partition: int = 0) -> list[int]:
    """The numbers that a level shows."""
    batches, _ = fetched(channel, topic, partition, isolation=level)
    return [number for batch, _ in batches for number in batch.column("n").to_pylist()]


def bounds(channel: ClientChannel, topic: str, partition: int = 0) -> tuple[int, int, int]:
    """LSO, HW and LEO."""
    facts = act(channel, "describe-topic", topic=topic)["partitions"][partition]
    return facts["last_stable_offset"], facts["high_watermark"], facts["log_end_offset"]
