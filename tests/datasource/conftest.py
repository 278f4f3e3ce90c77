"""Queries of these tests run as Spark 4.2 and newer call a source, and as 4.1 and 4.0 do.

In ``make test`` the earlier releases run only the tests that a module names in ``EARLIER``.
"""

from __future__ import annotations

import pytest

from tests.datasource import sources


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    module = metafunc.module
    if getattr(module, "Query", None) is sources.Query and not hasattr(module, "ONE_RELEASE"):
        is_quick = metafunc.definition.originalname in getattr(module, "EARLIER", ())
        earlier = pytest.param(False, id="4.1", marks=() if is_quick else pytest.mark.full)
        later = pytest.param(True, id="4.2")
        metafunc.parametrize("assisted", [later, earlier], indirect=True)


@pytest.fixture(autouse=True)
def assisted(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whether Spark passes a start and a limit to a source."""
    monkeypatch.setattr(sources, "IS_ASSISTED", getattr(request, "param", True))
