"""Which files a process maps when it reads next to the data, and reads that map none."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pyarrow as pa
import pytest

from spark_stream.client.reading import loop as feed
from spark_stream.client.reading.mapping import MappedFile, MappingLeaders


def watch_mapped(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The paths of all files that this process maps from now on."""
    found: list[str] = []
    pieces = MappedFile.pieces

    def noted(self: MappedFile, *asked: object) -> Iterator[object]:
        found.append(self.path)
        return pieces(self, *asked)  # type: ignore[arg-type]

    monkeypatch.setattr(MappedFile, "pieces", noted)
    monkeypatch.setattr(feed, "LEADERS", MappingLeaders())
    return found


def unmapped(read: Callable[[], pa.Table]) -> pa.Table:
    """What a read gives where nothing is mapped."""
    leaders, feed.LEADERS = feed.LEADERS, MappingLeaders()
    feed.LEADERS.machine = lambda address: None  # type: ignore[method-assign]
    try:
        return read()
    finally:
        feed.LEADERS = leaders
