"""A signal ends a command that writes, wherever it comes, and leaves no lock taken."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator

import pytest

from spark_stream.cli.terminal import Interrupts


@pytest.fixture(autouse=True)
def usual_handlers() -> Iterator[None]:
    """SIGINT and SIGTERM do what they do in a command that a terminal starts."""
    usual = {signal.SIGINT: signal.default_int_handler, signal.SIGTERM: signal.SIG_DFL}
    before = {number: signal.signal(number, how) for number, how in usual.items()}
    yield
    for number, how in before.items():
        signal.signal(number, how)


@pytest.mark.parametrize(
    ("number", "raised"), [(signal.SIGINT, KeyboardInterrupt), (signal.SIGTERM, SystemExit)]
)
def test_a_signal_is_raised_only_where_the_command_looks(number, raised):
    with Interrupts(number, at_once=False) as interrupts:
        interrupts.check()
        signal.raise_signal(number)  # as it comes when a lock was just taken
        with pytest.raises(raised):
            interrupts.check()
        with pytest.raises(raised):
            interrupts.wait(None)
    assert signal.getsignal(number) in (signal.SIG_DFL, signal.default_int_handler)


def test_a_second_signal_is_raised_at_once():
    with Interrupts(signal.SIGINT, at_once=False):
        signal.raise_signal(signal.SIGINT)
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)


def test_a_signal_is_raised_at_once_where_the_input_is_read_without_a_look():
    with Interrupts(signal.SIGINT, at_once=True), pytest.raises(KeyboardInterrupt):
        signal.raise_signal(signal.SIGINT)


def test_a_wait_for_input_ends_by_a_signal_that_does_not_interrupt_the_system_call():
    """As one that comes just before the call: here it comes to another thread."""
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


def test_what_is_there_to_read_ends_a_wait():
    reading, writing = os.pipe()
    os.write(writing, b"x")
    with Interrupts(signal.SIGINT, at_once=False) as interrupts:
        interrupts.wait(reading)
    assert os.read(reading, 1) == b"x"
    os.close(reading)
    os.close(writing)


def test_a_signal_that_is_ignored_stays_so():
    """So is SIGHUP under nohup, and SIGINT in a shell's background job."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with Interrupts(signal.SIGINT, at_once=False) as interrupts:
        signal.raise_signal(signal.SIGINT)
        interrupts.check()
