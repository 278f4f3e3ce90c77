"""Logs that lose their last records, as by a failover or a power cut, and go on in a new epoch."""

from __future__ import annotations

from spark_stream.consistency.entries import ENTRY_SIZE
from tests.support import BrokerProcess, numbers


def grow(broker: BrokerProcess, topic: str, first: int, count: int, partition: int = 0) -> None:
    """Appends records one by one: each is an entry, for none waits to go with others."""
    with broker.connect() as log, log.producer() as producer:
        for number in range(first, first + count):
            producer.append(topic, numbers(number, 1), partition=partition).result(20)


def cut(broker: BrokerProcess, keep: int, partition: int = 0, topic: str = "*") -> None:
    """A power cut that took all but the first entries of the partition; then the broker starts."""
    broker.kill()
    (entries,) = broker.directory.glob(f"topics/{topic}/*/{partition}/*.entries")
    with entries.open("r+b") as file:
        file.truncate(keep * ENTRY_SIZE)
    # It cannot vouch for its logs then: after a power cut because its machine was started anew.
    (broker.directory / "broker.run").unlink()
    broker.listen = broker.address
    broker.start()
