"""The standard streams: closed ones, full ones, and those that nobody reads any more."""

from __future__ import annotations

import errno
import os
import sys
from contextlib import suppress
from typing import Final

_STANDARD: Final = ("stdin", "stdout", "stderr")


def occupy() -> None:
    """Gives closed standard streams a place, before a file or a socket takes their number.

    Reading from such a stream fails, and so does writing to it, as on a full disk; what nobody can
    see on a closed standard error is dropped.
    """
    for number, name in enumerate(_STANDARD):
        try:
            os.fstat(number)
        except OSError:
            # The wrong way round, so that its use is an error. Descriptors are given out in order.
            flags = os.O_RDONLY if name == "stdout" else os.O_WRONLY
            assert os.open(os.devnull, flags) == number
            mode = "r" if name == "stdin" else "w"
            setattr(sys, name, open(number, mode, closefd=False))  # noqa: SIM115


def problem_of(error: OSError) -> str:
    """An error of the system in a few words: the file if it is known, else standard output.

    Everything else that is read or written without a name reports its errors itself.
    """
    reason = "it is closed" if error.errno == errno.EBADF else error.strerror or str(error)
    return f"{error.filename or 'standard output'}: {reason}"


def discard_output() -> None:
    """Drops what standard output still holds, and all that is written to it later."""
    devnull = os.open(os.devnull, os.O_WRONLY)
    os.dup2(devnull, sys.stdout.fileno())
    os.close(devnull)
    with suppress(OSError):
        sys.stdout.flush()
