"""A broker for the commands of this folder. In ``make test`` it is a fork, which starts quickly."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.cli.conftest import Served
from tests.support import BrokerProcess


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """A broker for the tests of a module; each takes topics of its own."""
    directory = tmp_path_factory.mktemp("log")
    with BrokerProcess(directory) as broker, broker.connect() as log:
        yield Served(directory, broker.address, log)
