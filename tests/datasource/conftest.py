"""Queries of these tests run as Spark 4.2 and newer call a source, and as 4.1 and 4.0 do."""

from __future__ import annotations

import pytest

from tests.datasource import sources


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    module = metafunc.module
    if getattr(module, "Query", None) is sources.Query and not hasattr(module, "ONE_RELEASE"):
        metafunc.parametrize("assisted", [True, False], ids=["4.2", "4.1"], indirect=True)


@pytest.fixture(autouse=True)
def assisted(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whether Spark passes a start and a limit to a source."""
    monkeypatch.setattr(sources, "IS_ASSISTED", getattr(request, "param", True))
