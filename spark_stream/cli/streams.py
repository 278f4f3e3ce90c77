"""The standard streams: closed ones, full ones, and those that are no longer read."""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import BinaryIO, Final

import typer

_STANDARD: Final = ("stdin", "stdout", "stderr")
_BUFFER_BYTES: Final = 1 << 20


def occupy() -> None:
    """Open closed standard streams, before a file or a socket takes their number.

    Reading from such a stream fails, and so does writing, as on a full disk; what goes to a closed
    standard error is dropped.
    """
    for number, name in enumerate(_STANDARD):
        try:
            os.fstat(number)
        except OSError:
            # Opened in the wrong direction: using it fails. Descriptors are assigned in order.
            flags = os.O_RDONLY if name == "stdout" else os.O_WRONLY
            assert os.open(os.devnull, flags) == number
            mode = "r" if name == "stdin" else "w"
            setattr(sys, name, open(number, mode, closefd=False))  # noqa: SIM115


def problem_of(error: OSError) -> str:
    """Describe an error of the system in a few words: with its file, or else standard output.

    All other code that reads or writes without a file name reports its errors itself.
    """
    reason = "it is closed" if error.errno == errno.EBADF else error.strerror or str(error)
    return f"{error.filename or 'standard output'}: {reason}"


def discard_output() -> None:
    """Drop what standard output still holds, and all that is written to it later."""
    devnull = os.open(os.devnull, os.O_WRONLY)
    os.dup2(devnull, sys.stdout.fileno())
    os.close(devnull)
    with suppress(OSError):
        sys.stdout.flush()


@contextmanager
def standard_output() -> Iterator[BinaryIO]:
    """Open standard output for bytes; end the command quietly if its reader closes the pipe."""
    # Not sys.stdout.buffer: with PYTHONUNBUFFERED it is a raw file, whose writes may be short.
    sink = open(sys.stdout.fileno(), "wb", buffering=_BUFFER_BYTES, closefd=False)  # noqa: SIM115
    try:
        yield sink
    except OSError as error:
        discard_output()  # also what is left in the sink's buffer
        if error.errno == errno.EPIPE:
            raise typer.Exit(0) from None
        raise
