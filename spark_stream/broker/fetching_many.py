"""A DoGet for several ranges: one answer after the other in one stream, each with its number.

A range of a few records costs its reader a call, whatever is in it. A Spark task that reads many of
them makes one call to each leader instead. What goes wrong with one range ends that one alone: its
end says so, and the next range follows.
"""

from __future__ import annotations

from collections.abc import Callable

import pyarrow as pa

from spark_stream.broker.fetch_task import Answers
from spark_stream.broker.fetching import FetchStream, bound
from spark_stream.broker.host import Host
from spark_stream.environment import Clock
from spark_stream.errors import InvalidRequest, IsologError
from spark_stream.wire.fetch_messages import FailureFacts, Fetch, FetchMany
from spark_stream.wire.schemas import empty_batch


class FetchManyStream:
    """The fetches of one call; the first is checked when it is made."""

    def __init__(
        self,
        host: Host,
        request: FetchMany,
        cancelled: Callable[[], bool],
        clock: Clock,
    ) -> None:
        """Raises as a fetch, for the first; InvalidRequest: one of them waits or follows."""
        self._host = host
        self._fetches = request.fetches
        self._cancelled = cancelled
        self._clock = clock
        for each in self._fetches:
            if each.wait_ms or each.follow:
                raise InvalidRequest("a fetch among several neither waits nor follows")
        first = self._fetches[0]
        self.schema = self._schema_of(first)

    def _schema_of(self, asked: Fetch) -> pa.Schema:
        _, projection, _ = bound(self._host, asked)
        return projection.schema

    def answers(self) -> Answers:
        """The answers of all fetches, in their order."""
        for number in range(len(self._fetches)):
            yield from self._answers_of(number)

    def _answers_of(self, number: int) -> Answers:
        asked = self._fetches[number]
        if self._cancelled():
            return
        try:
            stream = FetchStream(
                self._host, asked, self._cancelled, self._clock, follow_s=0, number=number
            )
            if not stream.schema.equals(self.schema):
                raise InvalidRequest(
                    f"fetch {number} asks for other columns than the first: {stream.schema.names}"
                )
            yield from stream.answers()
        except IsologError as error:
            facts = FailureFacts(fetch=number, error=error)
            yield empty_batch(self.schema), facts.to_bytes()
