"""Signal handlers wait for the end of a change."""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Iterator
from types import FrameType
from typing import Any

import pytest

from spark_stream.transport.signals import DeferredSignals

USED = signal.SIGUSR1


class Interrupt(Exception):
    """Raised by a handler."""


def interrupt(*_: object) -> None:
    raise Interrupt


@pytest.fixture(autouse=True)
def _restored() -> Iterator[None]:
    before = signal.getsignal(USED)
    yield
    signal.signal(USED, before)


def test_a_handler_runs_at_the_end_of_the_block() -> None:
    seen: list[str] = []
    signal.signal(USED, lambda *_: seen.append("handler"))
    with DeferredSignals():
        signal.raise_signal(USED)
        seen.append("block")
    assert seen == ["block", "handler"]


def test_a_handler_runs_immediately_while_the_block_is_open() -> None:
    seen: list[str] = []
    signal.signal(USED, lambda *_: seen.append("handler"))
    with DeferredSignals() as signals:
        signal.raise_signal(USED)
        seen.append("shut")
        signals.open()
        seen.append("open")
        signal.raise_signal(USED)
        signals.shut()
        signal.raise_signal(USED)
        seen.append("shut")
    assert seen == ["shut", "handler", "open", "handler", "shut", "handler"]


def test_an_exception_at_any_line_leaves_the_handler_of_the_program_and_loses_no_signal() -> None:
    """The signal comes before each line of the block and of the class itself."""
    signal.signal(USED, interrupt)
    number, is_reached, inside = 1, True, 0
    while is_reached:
        lines = 0

        def trace(frame: FrameType, event: str, _: object, wanted: int = number) -> Any:
            nonlocal lines
            if frame.f_code.co_name == "block" or "transport/signals" in frame.f_code.co_filename:
                if event == "line":
                    lines += 1
                    if lines == wanted:
                        signal.raise_signal(USED)
                return trace
            return None

        steps: list[int] = []

        def block(steps: list[int] = steps) -> None:
            with DeferredSignals():
                steps.append(1)
                steps.append(2)

        raised = False
        sys.settrace(trace)
        try:
            block()
        except Interrupt:
            raised = True
        finally:
            sys.settrace(None)
        is_reached = lines >= number
        assert raised is is_reached
        assert steps in ([], [1, 2])
        inside += bool(steps)
        assert signal.getsignal(USED) is interrupt
        number += 1
    assert number > 100  # each signal number has its lines
    assert inside > 1


def test_a_handler_runs_after_an_exception_of_another_one() -> None:
    """Two signals arrive in one block."""
    seen: list[str] = []
    other = signal.signal(signal.SIGUSR2, lambda *_: seen.append("handler"))
    signal.signal(USED, interrupt)

    def block() -> None:
        with DeferredSignals():
            signal.raise_signal(USED)
            signal.raise_signal(signal.SIGUSR2)

    try:
        with pytest.raises(Interrupt):
            block()
        assert seen == ["handler"]
    finally:
        signal.signal(signal.SIGUSR2, other)


def test_a_handler_that_the_program_sets_in_the_meantime_stays() -> None:
    signal.signal(USED, interrupt)

    def other(*_: object) -> None:
        """Do nothing."""

    with DeferredSignals():
        signal.signal(USED, other)
    assert signal.getsignal(USED) is other


def test_blocks_may_be_nested_by_a_handler() -> None:
    seen: list[str] = []

    def handler(*_: object) -> None:
        with DeferredSignals():
            if len(seen) < 2:
                seen.append("handler")
                signal.raise_signal(USED)
        seen.append("end")

    signal.signal(USED, handler)
    with DeferredSignals() as signals:
        signal.raise_signal(USED)
        signals.open()
        signals.shut()
        seen.append("block")
    assert seen == ["handler", "handler", "end", "end", "end", "block"]
    assert signal.getsignal(USED) is handler


def test_other_threads_replace_nothing() -> None:
    signal.signal(USED, interrupt)
    found: list[object] = []

    def look() -> None:
        with DeferredSignals():
            found.append(signal.getsignal(USED))

    other = threading.Thread(target=look)
    other.start()
    other.join()
    assert found == [interrupt]
