"""Metadata stores by name: what a conformance test runs against, once for each implementation."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from spark_stream.cluster.sqlite import SqliteStore
from spark_stream.cluster.store import MetadataStore

STORES: dict[str, Callable[[Path], MetadataStore]] = {
    "sqlite": lambda folder: SqliteStore(folder / "metadata.sqlite"),
}


def open_store(kind: str, folder: Path) -> MetadataStore:
    """A store of this kind; all that are opened on one folder see the same records."""
    return STORES[kind](folder)


@pytest.fixture(params=STORES)
def kind(request) -> str:
    return request.param


@pytest.fixture
def another(kind, tmp_path) -> Iterator[Callable[[], MetadataStore]]:
    """Opens one more store on the test's folder; all are closed in the end."""
    opened: list[MetadataStore] = []

    def make() -> MetadataStore:
        opened.append(open_store(kind, tmp_path))
        return opened[-1]

    yield make
    for store in opened:
        store.close()


@pytest.fixture
def store(another) -> MetadataStore:
    return another()
