"""Bytes of a file as the disk has them, past the memory that the system keeps of it.

``O_DIRECT`` reads into a buffer of ours and leaves that memory alone: what readers have there stays
there, nothing is pushed out for bytes that nobody needs again, and a page that is still good does
not hide a sector that is not. (What was written and is not on the disk yet, the system writes
first.) Positions and lengths must be multiples of the disk's blocks. Some file systems refuse it:
then the bytes come through memory, and the pages that no reader has mapped are given back.
"""

from __future__ import annotations

import errno
import mmap
import os
import sys
from pathlib import Path
from typing import Final

import pyarrow as pa

_BLOCK: Final = 4096  # a multiple of the blocks of all disks in use
_DIRECT: Final = getattr(os, "O_DIRECT", 0)
_REFUSALS: Final = {errno.EINVAL, errno.EOPNOTSUPP}


def stored_bytes(path: Path, position: int, length: int) -> pa.Buffer:
    """Return the bytes from ``position`` on, or fewer at the file's end.

    Raises:
        OSError: the file cannot be opened, or the disk does not give them.
    """
    if _DIRECT:
        try:
            return _read(path, position, length, _DIRECT)
        except OSError as error:
            if error.errno not in _REFUSALS:
                raise
    return _read(path, position, length, 0)


def _read(path: Path, position: int, length: int, flag: int) -> pa.Buffer:
    start = position - position % _BLOCK
    size = -(-(position + length - start) // _BLOCK) * _BLOCK
    room = memoryview(mmap.mmap(-1, max(size, _BLOCK)))  # memory of its own begins with a page
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | flag)
    try:
        found = 0
        while found < size:
            got = os.preadv(descriptor, [room[found:size]], start + found)
            found += got
            if not got or found % _BLOCK:  # the file's end
                break
        if not flag and sys.platform != "darwin":
            os.posix_fadvise(descriptor, start, size, os.POSIX_FADV_DONTNEED)
    finally:
        os.close(descriptor)
    skip = position - start
    return pa.py_buffer(room).slice(skip, max(0, min(length, found - skip)))
