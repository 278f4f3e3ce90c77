"""A plugin of pytest with the fixture ``local_cluster``, for every environment with isolog.

pytest loads this module at each start (setup.cfg names it), so it imports isolog only when a test
uses the fixture.
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
    """Start clusters of real brokers, which end with the test: ``local_cluster(brokers=3)``.

    The arguments are those of :class:`isolog.testing.LocalCluster`.
    """
    from spark_stream.testing import LocalCluster

    with ExitStack() as clusters:

        def made(*given: Any, **named: Any) -> LocalCluster:
            return clusters.enter_context(LocalCluster(*given, **named))

        yield made
