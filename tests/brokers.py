"""Broker processes on one store with topics on them, and a broker in the process of the test.

A broker may also lose the last records of a log, as by a power cut, and continue in a new epoch.

The ids of the processes are letters. Unlike in ``LocalCluster``, one may have a fault point, and a
test starts and stops each of them. The broker in the process of the test has sockets and threads.
``tests/broker/local_broker.py`` has a broker without them.
"""

from __future__ import annotations

import base64
import os
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa

from spark_stream.broker.config import BrokerConfig
from spark_stream.broker.process import Broker
from spark_stream.consistency.entries import ENTRY_SIZE
from tests.faults import FaultyBroker
from tests.support import NUMBERS, BrokerProcess, Channel, act, eventually, numbers


def conf(folder: Path, broker: str) -> str:
    """Return the settings of a broker of this id whose store is in the folder."""
    return f'metadata = "{folder / "metadata.sqlite"}"\nid = "{broker}"\n'


@contextmanager
def broker_here(folder: Path, **settings: Any) -> Iterator[Broker]:
    """Start a broker in this process, so that a test can hold or replace its parts."""
    mask = os.umask(0o077)
    broker = Broker(BrokerConfig(dir=folder / "log", listen="127.0.0.1:0", **settings))
    try:
        yield broker
    finally:
        broker.stop()
        os.umask(mask)


@contextmanager
def brokers_on(
    folder: Path, names: str = "ab", *, point: str | None = None, more: str = "", **topics: str
) -> Iterator[list[Any]]:
    """Start a broker for each letter. The first one may have a fault point.

    ``more`` are further settings. Each of the topics has two partitions on the brokers of its
    letters, the leader first.
    """
    with ExitStack() as stack:
        found: list[BrokerProcess] = []
        for name in names:
            settings = conf(folder, name) + more
            broker = (
                BrokerProcess(folder / name, conf=settings)
                if point is None or found
                else FaultyBroker(folder / name, point, conf=settings)
            )
            found.append(stack.enter_context(broker))
        with found[-1].connect() as log:
            for topic, where in topics.items():
                log.create_topic(topic, schema=NUMBERS, assignment=[list(where)] * 2)
        yield found


def make_topic(
    asked: Channel,
    topic: str,
    assignment: Sequence[Sequence[str]],
    schema: pa.Schema = NUMBERS,
    **config: str,
) -> None:
    """Create a topic whose partitions are on these brokers, the leader of each first."""
    encoded = base64.b64encode(schema.serialize()).decode()
    more = {"schema_ipc": encoded, "assignment": assignment, "config": config}
    act(asked, "create-topic", topic=topic, **more)


def await_heir(topic: str, heir: BrokerProcess, name: str = "b") -> None:
    """Wait until the broker leads all partitions of the topic."""
    with heir.connect() as log:
        eventually(lambda: all(each.leader == name for each in log.describe(topic).partitions))


def append_entries(
    broker: BrokerProcess, topic: str, first: int, count: int, partition: int = 0
) -> None:
    """Append records one by one, so that each becomes an entry."""
    with broker.connect() as log, log.producer() as producer:
        for number in range(first, first + count):
            producer.append(topic, numbers(number, 1), partition=partition).result(20)


def truncate_log(broker: BrokerProcess, keep: int, partition: int = 0, topic: str = "*") -> None:
    """Keep only the first entries of the partition, as after a power cut, and start the broker."""
    broker.kill()
    (entries,) = broker.directory.glob(f"topics/{topic}/*/{partition}/*.entries")
    with entries.open("r+b") as file:
        file.truncate(keep * ENTRY_SIZE)
    # A broker without this file cannot vouch for its logs, as after a restart of its machine.
    (broker.directory / "broker.run").unlink()
    broker.listen = broker.address
    broker.start()
