"""Two brokers on one store, and topics whose leader is replaced by the other broker."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from tests.support import NUMBERS, BrokerProcess, eventually

A, B = "a", "b"
LED_BY_A: Sequence[str] = (A,)
LED_BY_B: Sequence[str] = (B,)
REPLICATED: Sequence[str] = (A, B)
"""A leads, and B takes over."""


@contextmanager
def two_brokers(
    tmp_path: Path, **topics: Sequence[str]
) -> Iterator[tuple[BrokerProcess, BrokerProcess]]:
    """Brokers A and B, with topics of two partitions on the brokers named."""
    conf = f'metadata = "{tmp_path / "metadata.sqlite"}"\nid = "%s"\n'
    with (
        BrokerProcess(tmp_path / A, conf=conf % A) as first,
        BrokerProcess(tmp_path / B, conf=conf % B) as second,
    ):
        with second.connect() as log:
            for topic, brokers in topics.items():
                log.create_topic(topic, schema=NUMBERS, assignment=[brokers, brokers])
        yield first, second


def await_heir(topic: str, heir: BrokerProcess) -> None:
    """Waits until B leads the topic, after A died or stood still for too long."""
    with heir.connect() as log:
        eventually(lambda: all(each.leader == B for each in log.describe(topic).partitions))
