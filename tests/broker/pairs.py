"""Two brokers on one store, A and B, with topics that they lead."""

from __future__ import annotations

import base64
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa

from tests.faults import FaultyBroker
from tests.support import NUMBERS, BrokerProcess, Channel, act


def conf(folder: Path, broker: str) -> str:
    """Settings of a broker of this id whose store is in the folder."""
    return f'metadata = "{folder / "metadata.sqlite"}"\nid = "{broker}"\n'


def make_topic(
    asked: Channel,
    topic: str,
    assignment: Sequence[Sequence[str]],
    schema: pa.Schema = NUMBERS,
    **config: str,
) -> None:
    """A topic whose partitions are on these brokers, the leader of each first."""
    encoded = base64.b64encode(schema.serialize()).decode()
    more = {"schema_ipc": encoded, "assignment": assignment, "config": config}
    act(asked, "create-topic", topic=topic, **more)


def brokers(folder: Path, point: str | None = None) -> tuple[Any, BrokerProcess]:
    """Brokers ``a`` and ``b``, to be started; ``a`` may have a fault point."""
    one = (
        BrokerProcess(folder / "a", conf=conf(folder, "a"))
        if point is None
        else FaultyBroker(folder / "a", point, conf=conf(folder, "a"))
    )
    return one, BrokerProcess(folder / "b", conf=conf(folder, "b"))


@contextmanager
def pair(folder: Path, point: str | None = None) -> Iterator[tuple[Any, BrokerProcess]]:
    """Both, with topics ``a`` and ``b`` of two partitions, each led by the broker of its name."""
    one, two = brokers(folder, point)
    with one as first, two as second, first.channel() as asked:
        for topic in "ab":
            make_topic(asked, topic, [[topic], [topic]])
        yield first, second
