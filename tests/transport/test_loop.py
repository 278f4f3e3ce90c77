"""The loop's timers, and the selectors of other systems."""

from __future__ import annotations

import selectors
import socket
import threading
from collections.abc import Iterator

import pytest

from spark_stream.transport import loop as loops
from spark_stream.transport.loop import READ, Loop


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


@pytest.mark.parametrize("selector", [selectors.SelectSelector, selectors.DefaultSelector])
def test_a_socket_without_events_is_not_watched_until_it_has_some(
    monkeypatch: pytest.MonkeyPatch, selector: type[selectors.BaseSelector]
) -> None:
    """Kqueue and select refuse an empty set of events."""
    monkeypatch.setattr(loops, "new_selector", selector)
    loop, called, refused = Loop("test"), threading.Event(), list[str]()
    mine, theirs = socket.socketpair()
    theirs.send(b"data")

    def watch(events: int) -> None:
        try:
            loop.watch(mine, events, lambda _: called.set())
        except ValueError as error:
            refused.append(str(error))

    loop.call_soon(watch, READ)
    assert called.wait(20)
    loop.call_soon(watch, 0)
    done = threading.Event()
    loop.call_soon(done.set)
    assert done.wait(20)
    called.clear()
    assert not called.wait(0.05)
    loop.call_soon(watch, READ)
    assert called.wait(20)
    assert refused == []
    loop.close()
    theirs.close()
