"""What the actions of a broker act on."""

from __future__ import annotations

import time
from dataclasses import dataclass, field

from spark_stream.broker.host import Host
from spark_stream.broker.topics import TopicDesk
from spark_stream.broker.transactions import TransactionDesk


@dataclass(frozen=True)
class BrokerFacts:
    """What the broker says of itself."""

    address: str
    directory: str
    cluster_id: str
    started: float = field(default_factory=time.monotonic)


@dataclass(frozen=True)
class Here:
    """This broker, as its actions see it."""

    host: Host
    topics: TopicDesk
    desk: TransactionDesk
    facts: BrokerFacts
