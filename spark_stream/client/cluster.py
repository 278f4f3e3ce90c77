"""What a client asks about the cluster, and where it puts replicas and leaderships."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Final

from spark_stream.client.connecting.connection import Connection
from spark_stream.client.topics import named_topic
from spark_stream.errors import InvalidRequest, IsologError, MetadataLost, UnknownBroker
from spark_stream.wire.cluster_messages import (
    ClusterDescription,
    Elected,
    ElectPreferred,
    MoveReplicas,
    NamedBroker,
    ProblemKind,
)
from spark_stream.wire.messages import Empty

_TAKEN_S: Final = 10.0  # brokers look many times a second
_TAKEN_PAUSE_S: Final = 0.1


class ClusterClient:
    """The cluster behind a connection; any broker of it answers."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def describe(self) -> ClusterDescription:
        """The cluster as it is now."""
        return self._connection.act("describe-cluster", Empty(), ClusterDescription)

    def move_replicas(self, topic: str, partitions: Mapping[int, Sequence[str | int]]) -> None:
        """Begins to move the replicas of these partitions."""
        moves = {number: [str(each) for each in brokers] for number, brokers in partitions.items()}
        asked = MoveReplicas.of(topic=named_topic(topic).topic, partitions=moves)
        self._connection.act("move-replicas", asked, Empty)

    def cancel_moves(self, topic: str) -> None:
        """Cancels the moves of the topic's partitions that are under way."""
        asked = MoveReplicas.of(topic=named_topic(topic).topic)
        self._connection.act("cancel-moves", asked, Empty)

    def elect_preferred_leaders(self, topic: str | None) -> int:
        """Lets preferred leaders lead; how many leaderships have moved."""
        asked = ElectPreferred.of(topic=None if topic is None else named_topic(topic).topic)
        return self._connection.act("elect-preferred", asked, Elected).elected

    def decommission(self, broker: str | int) -> None:
        """Begins to take the broker out of the cluster."""
        self._connection.act("decommission", _named(broker), Empty)

    def recommission(self, broker: str | int) -> None:
        """Lets a broker that was to leave stay."""
        self._connection.act("recommission", _named(broker), Empty)

    def restore_metadata(self) -> None:
        """Have the brokers write back a metadata store that was deleted; wait until all take it.

        Raises:
            InvalidRequest: Nothing is missing, or another file is in its place.
            MetadataLost: Running brokers have not taken what was written back.
        """
        self._connection.act("restore-metadata", Empty(), Empty)
        deadline = time.monotonic() + _TAKEN_S
        while reasons := self._without_store():
            if time.monotonic() > deadline:
                raise MetadataLost(
                    "a broker has written the metadata store back, and others have not taken it: "
                    + "; ".join(f"broker {each}: {why}" for each, why in reasons.items()),
                    hint="See their log files. A broker that has stopped must be started again.",
                )
            time.sleep(_TAKEN_PAUSE_S)

    def _without_store(self) -> dict[str, str]:
        """Return the running brokers that refuse changes or do not answer, each with its reason."""
        reasons = {}
        for broker in self.describe().brokers:
            if not broker.alive:
                continue
            link = self._connection.to(broker.id, broker.address)
            try:
                facts = link.act("describe-cluster", Empty(), ClusterDescription, _TAKEN_S)
            except IsologError as error:
                reasons[broker.id] = error.message
                continue
            for problem in facts.problems:
                if problem.kind == ProblemKind.METADATA_LOST:
                    reasons[broker.id] = problem.message
        return reasons


def _named(broker: str | int) -> NamedBroker:
    try:
        return NamedBroker.of(broker=str(broker))
    except InvalidRequest:
        raise UnknownBroker(f"there is no broker {str(broker)!r}") from None
