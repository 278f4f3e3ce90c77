"""What the actions of a broker act on."""

from __future__ import annotations

from typing import Protocol

from msgspec import Struct

from spark_stream.broker.host.host import Host
from spark_stream.broker.node.members import Members
from spark_stream.broker.node.scrubbing import Scrub
from spark_stream.broker.scripting.coordinator import TransactionCoordinator
from spark_stream.broker.scripting.topics import TopicAdmin
from spark_stream.environment import Clock
from spark_stream.errors import MetadataLost


class StoreFile(Protocol):
    """The file of the metadata store, as an operator asks about it."""

    @property
    def lost(self) -> MetadataLost | None:
        """Why changes are refused: the file at the path is not the open one; None if it is."""

    def write_back(self) -> None:
        """Write the open copy to its path, from which a file was deleted.

        Raises:
            InvalidRequest: nothing is missing, or there is another file.
        """


class BrokerFacts(Struct, frozen=True):
    """What the broker says of itself. ``started``: on its monotonic clock.

    ``flight``: the address at which it serves Flight; empty if it does not.
    """

    address: str
    directory: str
    cluster_id: str
    started: float
    flight: str = ""


class BrokerContext(Struct, frozen=True):
    """This broker, as its actions see it."""

    host: Host
    topics: TopicAdmin
    transactions: TransactionCoordinator
    members: Members
    facts: BrokerFacts
    clock: Clock
    scrub: Scrub
    store: StoreFile
