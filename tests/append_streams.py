"""A stream of appends by the bare protocol: without our client's lanes and retries."""

from __future__ import annotations

import json
from typing import Any

from spark_stream.transport.client import ClientChannel
from spark_stream.wire.methods import APPEND
from tests.support import NUMBERS, numbers

_ANSWER_S = 20.0


class Stream:
    """A stream, one batch of one number after the other; batch and record have the same number."""

    def __init__(self, address: str, topic: str = "t", **asked: Any) -> None:
        self.channel = ClientChannel(address, timeout_s=_ANSWER_S)
        request = json.dumps({"topic": topic, **asked}).encode()
        self._stream = self.channel.open(APPEND, request, memoryview(NUMBERS.serialize()))
        self._number = 0

    def send(self, partition: int, **more: Any) -> None:
        """Sends the next batch; ``more`` goes into its envelope."""
        envelope = {"partition": partition, "number": self._number, **more}
        batch = memoryview(numbers(self._number, 1).serialize())
        self._stream.send(json.dumps(envelope).encode(), batch, timeout_s=_ANSWER_S)
        self._number += 1

    def ack(self) -> dict[str, Any]:
        """The next answer."""
        received = self._stream.receive(_ANSWER_S)
        assert received is not None
        return dict(json.loads(bytes(received.header)))

    def end(self) -> None:
        """Says that no more batches come."""
        self._stream.send(b"", end=True)

    def close(self) -> None:
        """Ends the connection, and the stream with it."""
        self.channel.close()
