"""A request of a Kafka client with everything that its handler needs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

from msgspec import Struct

from spark_stream.client.log import Log
from spark_stream.kafka.connection import KafkaRequest
from spark_stream.kafka.counts import GatewayCounts
from spark_stream.kafka.logins import ClusterUser
from spark_stream.kafka.memory.members import Members
from spark_stream.kafka.memory.transactions import Transactions
from spark_stream.kafka.peers import Gateways
from spark_stream.kafka.reading import FetchSession

Answer: TypeAlias = dict[str, Any]
"""The fields of a response. Others have their defaults."""


class KafkaCall(Struct, frozen=True):
    """A request, its user, the readers of its connection, and what all connections share."""

    user: ClusterUser
    reads: FetchSession
    gateways: Gateways
    members: Members
    transactions: Transactions
    counts: GatewayCounts
    request: KafkaRequest

    @property
    def log(self) -> Log:
        """The user's connection to the brokers."""
        return self.user.log

    @property
    def fields(self) -> dict[str, Any]:
        """The fields of the request."""
        return self.request.fields


Handler = Callable[[KafkaCall], Answer | None]
"""A function that returns the answer to a request, or None for a request without one."""
