"""Standard streams, a progress bar, and the signals that end a command.

A stream may be closed or full, or its reader may have closed the pipe. The bar is shown only on a
terminal, and only after a second.
"""

from __future__ import annotations

import errno
import os
import select
import signal
import socket
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, BinaryIO, Final, Self

import typer

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID

_STANDARD: Final = ("stdin", "stdout", "stderr")
_BUFFER_BYTES: Final = 1 << 20
_WAKE_BYTES: Final = 4096
_AFTER_S: Final = 1.0


def open_closed_streams() -> None:
    """Open the closed standard streams, before a file or a socket gets their descriptors.

    Reads and writes of such a stream fail. Text for a closed standard error is dropped.
    """
    for number, name in enumerate(_STANDARD):
        try:
            os.fstat(number)
        except OSError:
            # Opened in the wrong direction, so that any use fails. Descriptors are assigned in orde
            flags = os.O_RDONLY if name == "stdout" else os.O_WRONLY
            assert os.open(os.devnull, flags) == number
            mode = "r" if name == "stdin" else "w"
            setattr(sys, name, open(number, mode, closefd=False))  # noqa: SIM115


def problem_of(error: OSError) -> str:
    """Describe an error of the system, with its file. The file is standard output by default.

    Other code that reads or writes without a file name reports its errors itself.
    """
    reason = "it is closed" if error.errno == errno.EBADF else error.strerror or str(error)
    return f"{error.filename or 'standard output'}: {reason}"


def discard_output() -> None:
    """Drop the buffered text of standard output, and all later text."""
    devnull = os.open(os.devnull, os.O_WRONLY)
    os.dup2(devnull, sys.stdout.fileno())
    os.close(devnull)
    with suppress(OSError):
        sys.stdout.flush()


@contextmanager
def standard_output() -> Iterator[BinaryIO]:
    """Open standard output for bytes. End the command quietly if its reader closes the pipe."""
    # Not sys.stdout.buffer: with PYTHONUNBUFFERED it is a raw file, whose writes may be short.
    sink = open(sys.stdout.fileno(), "wb", buffering=_BUFFER_BYTES, closefd=False)  # noqa: SIM115
    try:
        yield sink
    except OSError as error:
        discard_output()  # including the rest in the sink's buffer
        if error.errno == errno.EPIPE:
            raise typer.Exit(0) from None
        raise


class Bar:
    """A bar with the number of copied records, and their share of all records."""

    def __init__(self, title: str) -> None:
        self._title = title
        self._since = time.monotonic()
        self._records = 0
        self._shown: tuple[Progress, TaskID] | None = None

    def advance(self, records: int, part: float | None) -> None:
        """Add records. ``part``: the share of all that is done then (0 to 1), None if unknown."""
        self._records += records
        if time.monotonic() - self._since < _AFTER_S:
            return
        if self._shown is None:
            self._shown = self._start()
        progress, task = self._shown
        progress.update(
            task,
            completed=part or 0.0,
            total=None if part is None else 1.0,
            records=f"{self._records:,} records",
        )

    def _start(self) -> tuple[Progress, TaskID]:
        from rich.console import Console
        from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

        progress = Progress(
            TextColumn("{task.description}", markup=False),
            BarColumn(),
            TextColumn("{task.fields[records]}"),
            TimeRemainingColumn(),
            console=Console(stderr=True),
            transient=True,
        )
        progress.start()
        return progress, progress.add_task(self._title, total=1.0, records="")

    def end(self) -> None:
        """Remove the bar from the screen."""
        if self._shown is not None:
            self._shown[0].stop()


class _Hidden(Bar):
    """A bar that is not shown: there is no terminal, or the records fill the screen."""

    def advance(self, records: int, part: float | None) -> None:
        pass


@contextmanager
def bar(title: str, *, screen_is_free: bool = True) -> Iterator[Bar]:
    """Show a bar until the block ends."""
    shown = Bar(title) if screen_is_free and sys.stderr.isatty() else _Hidden(title)
    try:
        yield shown
    finally:
        shown.end()


class Interrupts:
    """Signals that end the command, raised as exceptions only where the command holds no lock.

    A handler may run right after a lock was acquired, before the block that releases it. An
    exception there would leave the lock acquired for ever. A handler therefore only stores the
    signal, and :meth:`check` and :meth:`wait` raise. A second signal raises in the handler, because
    the command may be stuck.
    """

    def __init__(self, *signals: signal.Signals, at_once: bool) -> None:
        """Handle signals. ``at_once``: raise in the handler, for input without :meth:`wait`."""
        self._signals = signals
        self._at_once = at_once
        self._found: int | None = None

    def __enter__(self) -> Self:
        usual = (signal.SIG_DFL, signal.default_int_handler)
        found = {each: signal.getsignal(each) for each in self._signals}
        self._before = {each: how for each, how in found.items() if how in usual}  # keep nohup's
        # A signal just before select() starts does not interrupt it, but this byte does.
        self._woken, self._wake = socket.socketpair()  # Windows cannot wait for a pipe
        self._woken.setblocking(False)
        self._wake.setblocking(False)
        self._wake_before = signal.set_wakeup_fd(self._wake.fileno(), warn_on_full_buffer=False)
        for each in self._before:
            signal.signal(each, self._take)
        return self

    def __exit__(self, *_: object) -> None:
        for each, how in self._before.items():
            signal.signal(each, how)
        signal.set_wakeup_fd(self._wake_before)
        self._woken.close()
        self._wake.close()

    def check(self) -> None:
        """Raise KeyboardInterrupt or SystemExit if a signal was received."""
        if self._found == signal.SIGINT:
            raise KeyboardInterrupt
        if self._found is not None:
            raise SystemExit(128 + self._found)

    def wait(self, number: int | None) -> None:
        """Wait until the descriptor is readable. Raise like :meth:`check`."""
        self.check()
        while (
            number is not None
            and number not in select.select([number, self._woken.fileno()], [], [])[0]
        ):
            with suppress(BlockingIOError):
                self._woken.recv(_WAKE_BYTES)
            self.check()

    def _take(self, number: int, _: object) -> None:
        stuck, self._found = self._found is not None, number
        if stuck or self._at_once:
            self.check()
