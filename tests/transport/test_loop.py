"""The loop's timers."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest

from spark_stream.transport.loop import Loop


@pytest.fixture
def loop() -> Iterator[Loop]:
    found = Loop("test")
    yield found
    found.close()


def test_timer_of_months_does_not_break_the_loop(loop: Loop):
    far = loop.call_later(60 * 86_400.0, lambda: None)
    called = threading.Event()
    loop.call_later(0.01, called.set)
    assert called.wait(20)
    far.cancel()
    again = threading.Event()
    loop.call_soon(again.set)
    assert again.wait(20)
