"""A server of objects, for all tests of the folder."""

from __future__ import annotations

import pytest

from tests.lake.storage.object_server import Faults, object_server


@pytest.fixture(scope="session")
def running_objects():
    with object_server() as found:
        yield found


@pytest.fixture
def objects(running_objects, monkeypatch):
    """Return the server without faults, with its variables in the environment."""
    for name, value in running_objects.environment().items():
        monkeypatch.setenv(name, value)
    yield running_objects
    running_objects.faults = Faults()
