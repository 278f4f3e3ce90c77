"""A signal ends a command that writes at any time, and leaves no acquired lock."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator

import pytest

from spark_stream.cli.terminal import Interrupts


@pytest.fixture(autouse=True)
def usual_handlers() -> Iterator[None]:
    """Give SIGINT and SIGTERM the handlers of a command in a terminal."""
    usual = {signal.SIGINT: signal.default_int_handler, signal.SIGTERM: signal.SIG_DFL}
    before = {number: signal.signal(number, how) for number, how in usual.items()}
    yield
    for number, how in before.items():
        signal.signal(number, how)


@pytest.mark.parametrize(
    ("number", "raised"), [(signal.SIGINT, KeyboardInterrupt), (signal.SIGTERM, SystemExit)]
)
def test_signals_are_raised_only_in_check(number, raised):
    with Interrupts(number, at_once=False) as interrupts:
        interrupts.check()
        signal.raise_signal(number)  # as right after a lock was acquired
        with pytest.raises(raised):
            interrupts.check()
        with pytest.raises(raised):
            interrupts.wait(None)
    assert signal.getsignal(number) in (signal.SIG_DFL, signal.default_int_handler)


def test_second_signal_is_raised_in_the_handler():
    with Interrupts(signal.SIGINT, at_once=False):
        signal.raise_signal(signal.SIGINT)
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)


def test_at_once_raises_the_first_signal_in_the_handler():
    with Interrupts(signal.SIGINT, at_once=True), pytest.raises(KeyboardInterrupt):
        signal.raise_signal(signal.SIGINT)


def test_wait_ends_by_a_signal_that_does_not_interrupt_select():
    """Simulate a signal just before the call by a signal to another thread."""
    reading, writing = os.pipe()
    ended, helped = threading.Event(), threading.Event()

    def interrupt() -> None:
        signal.pthread_kill(threading.get_ident(), signal.SIGINT)
        if not ended.wait(10):
            helped.set()
            os.write(writing, b"x")

    other = threading.Timer(0.2, interrupt)
    try:
        with Interrupts(signal.SIGINT, at_once=False) as interrupts:
            other.start()
            with pytest.raises(KeyboardInterrupt):
                interrupts.wait(reading)
        ended.set()
        other.join()
        assert not helped.is_set()
    finally:
        os.close(reading)
        os.close(writing)


def test_wait_ends_when_input_is_readable():
    reading, writing = os.pipe()
    os.write(writing, b"x")
    with Interrupts(signal.SIGINT, at_once=False) as interrupts:
        interrupts.wait(reading)
    assert os.read(reading, 1) == b"x"
    os.close(reading)
    os.close(writing)


def test_ignored_signals_stay_ignored():
    """Such as SIGHUP under nohup, and SIGINT in a background job of a shell."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with Interrupts(signal.SIGINT, at_once=False) as interrupts:
        signal.raise_signal(signal.SIGINT)
        interrupts.check()
