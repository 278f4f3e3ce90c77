"""Reads next to the data: which brokers send records, and which files a process maps."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import pyarrow as pa
import pytest

import isolog
from spark_stream.client.reading import loop as fetcher
from spark_stream.client.reading.fetching import MappedFile, MappingLeaders
from spark_stream.client.reading.loop import Fetcher
from tests.support import eventually


def watch_sent(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """Return a counter of the bytes that each broker sends."""
    found: Counter[str] = Counter()
    receive = Fetcher._receive

    def noted(self: Fetcher, call: Any, frame: Any) -> None:
        found[call.sendings[0].broker[0]] += frame.size
        receive(self, call, frame)

    monkeypatch.setattr(Fetcher, "_receive", noted)
    return found


def eventually_near(
    log: isolog.Log, topic: str, isolation: str, expected: list[int], sent: Counter[str]
) -> None:
    """Wait until the follower serves all visible records, so that the leader sends none.

    Before that the leader serves the records that the follower cannot show yet.
    """

    def is_near() -> bool:
        sent.clear()
        assert log.read(topic, isolation=isolation).column("n").to_pylist() == expected
        return set(sent) == {"2"}

    eventually(is_near)


def watch_mapped(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return a list to which the paths of mapped files are added."""
    found: list[str] = []
    pieces = MappedFile.pieces

    def noted(self: MappedFile, *asked: object) -> Iterator[object]:
        found.append(self.path)
        return pieces(self, *asked)  # type: ignore[arg-type]

    monkeypatch.setattr(MappedFile, "pieces", noted)
    monkeypatch.setattr(fetcher, "LEADERS", MappingLeaders())
    return found


def unmapped(read: Callable[[], pa.Table]) -> pa.Table:
    """Return the result of a read without mapped files."""
    leaders, fetcher.LEADERS = fetcher.LEADERS, MappingLeaders()
    fetcher.LEADERS.machine = lambda address: None  # type: ignore[method-assign]
    try:
        return read()
    finally:
        fetcher.LEADERS = leaders
