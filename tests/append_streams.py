"""A stream of appends as any Flight client may open it: without our client's lanes and retries."""

from __future__ import annotations

import json
from typing import Any

import pyarrow.flight as fl

from tests.support import CALL, NUMBERS, flight_client, numbers


class Stream:
    """A DoPut, one batch of one number after the other; batch and record have the same number."""

    def __init__(self, address: str, topic: str = "t", **asked: Any) -> None:
        command = json.dumps({"topic": topic, **asked}).encode()
        self.flight = flight_client(address)
        descriptor = fl.FlightDescriptor.for_command(command)
        self.writer, self._acks = self.flight.do_put(descriptor, NUMBERS, CALL)
        self._number = 0

    def send(self, partition: int, **more: Any) -> None:
        """Sends the next batch; ``more`` goes into its envelope."""
        envelope = {"partition": partition, "number": self._number, **more}
        batch = numbers(self._number, 1)
        self.writer.write_with_metadata(batch, json.dumps(envelope).encode())
        self._number += 1

    def ack(self) -> dict[str, Any]:
        """The next answer."""
        return dict(json.loads(self._acks.read().to_pybytes()))
