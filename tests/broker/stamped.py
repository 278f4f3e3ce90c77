"""Stamped appends and transactions by plain Flight calls, as a client would make them."""

from __future__ import annotations

import json
import uuid
from typing import Any

import pyarrow.flight as fl

from spark_stream.errors import IsologError, from_wire
from tests.support import CALL, NUMBERS, act, fetched, numbers, typed


class Appender:
    """One DoPut stream; each ``put`` waits for its acknowledgement."""

    def __init__(self, flight: fl.FlightClient, topic: str, owner: str | None = None) -> None:
        asked: dict[str, Any] = {"topic": topic}
        if owner is not None:
            asked["transactional_id"] = owner
        descriptor = fl.FlightDescriptor.for_command(json.dumps(asked).encode())
        self._writer, self._acks = flight.do_put(descriptor, NUMBERS, CALL)

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
        stamp: dict[str, Any] = {"producer_id": producer, "epoch": epoch, "sequence": sequence}
        if transaction is not None:
            stamp["transaction"] = transaction
        envelope = {"partition": partition, "stamp": stamp}
        self._writer.write_with_metadata(numbers(first, count), json.dumps(envelope).encode())
        return dict(json.loads(self._acks.read().to_pybytes()))

    def refused(self, *args: int, **options: Any) -> IsologError:
        """The error that such a put gets."""
        ack = self.put(*args, **options)
        assert "error" in ack, ack
        return from_wire(ack["error"])

    def close(self) -> None:
        self._writer.close()


class Owner:
    """A transactional id with an instance of its own, and the transaction that it has open."""

    def __init__(self, flight: fl.FlightClient, name: str = "", timeout_ms: int = 60_000) -> None:
        self.flight = flight
        self.name = name or f"owner-{uuid.uuid4().hex[:8]}"
        self.instance = uuid.uuid4().hex
        act(
            flight,
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
        facts = act(self.flight, "begin-transaction", **self.who, after=self.after)
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
        """Appends in the open transaction, on a stream of its own."""
        who = self.producer if producer is None else producer
        place = (topic, partition, who)
        sequence = self._sequences.get(place, -1) + 1
        self._sequences[place] = sequence
        stream = Appender(self.flight, topic, self.name)
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
        return act(self.flight, "commit-transaction", **self.who, **fields)

    def abort(self) -> dict[str, Any]:
        return act(self.flight, "abort-transaction", **self.who, number=self.number)

    def described(self) -> dict[str, Any]:
        return act(self.flight, "describe-transaction", transactional_id=self.name)


def refused(call: Any) -> IsologError:
    """The typed error that a call ends with."""
    try:
        call()
    except fl.FlightError as error:
        return typed(error)
    raise AssertionError("the call was not refused")


def seen(flight: fl.FlightClient, topic: str, level: str, partition: int = 0) -> list[int]:
    """The numbers that a level shows."""
    batches, _ = fetched(flight, topic, partition, isolation=level)
    return [number for batch, _ in batches for number in batch.column("n").to_pylist()]


def bounds(flight: fl.FlightClient, topic: str, partition: int = 0) -> tuple[int, int, int]:
    """LSO, HW and LEO."""
    facts = act(flight, "describe-topic", topic=topic)["partitions"][partition]
    return facts["last_stable_offset"], facts["high_watermark"], facts["log_end_offset"]
