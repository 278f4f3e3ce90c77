"""Fixtures for pytest. They are there in every test suite where isolog is installed."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest

from spark_stream.testing.local_cluster import LocalCluster


@pytest.fixture
def local_cluster() -> Iterator[Callable[..., LocalCluster]]:
    """Makes clusters, which end with the test: ``local_cluster(brokers=3)``."""
    with ExitStack() as clusters:
        yield lambda *given, **named: clusters.enter_context(_made(*given, **named))


def _made(*given: Any, **named: Any) -> LocalCluster:
    return LocalCluster(*given, **named)
