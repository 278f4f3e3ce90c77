"""Fixtures: clusters of brokers that have no processes."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.broker.local_broker import LocalBroker, Surroundings, to_create
from tests.support import NUMBERS


@pytest.fixture
def around(tmp_path: Path) -> Iterator[Surroundings]:
    """The shared parts of a cluster's brokers, which end with the test."""
    found = Surroundings(tmp_path)
    yield found
    found.close()


def make(asked: LocalBroker, topic: str, *assignment: str, **config: str) -> None:
    """A topic: the brokers of each partition as one word, its leader first.

    Brokers are named by one letter each. All of them see it immediately.
    """
    asked.topics.create(
        to_create(topic, 1, 1, NUMBERS, config, [list(each) for each in assignment])
    )
    see(asked.around)


def see(around: Surroundings) -> None:
    """Every running broker reads all that is on record."""
    for each in list(around.up.values()):
        each.host.refresh()
        each.members.check_alive()
