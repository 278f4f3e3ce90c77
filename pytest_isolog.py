"""Fixtures for pytest: in every test suite where isolog is installed, ``local_cluster`` is there.

pytest loads this module at each start (setup.cfg names it), so it imports nothing before a test
asks for a cluster.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from spark_stream.testing import LocalCluster


@pytest.fixture
def local_cluster() -> Iterator[Callable[..., LocalCluster]]:
    """Make clusters of real brokers, which end with the test: ``local_cluster(brokers=3)``.

    Takes what :class:`isolog.testing.LocalCluster` takes.
    """
    from spark_stream.testing import LocalCluster

    with ExitStack() as clusters:

        def made(*given: Any, **named: Any) -> LocalCluster:
            return clusters.enter_context(LocalCluster(*given, **named))

        yield made
