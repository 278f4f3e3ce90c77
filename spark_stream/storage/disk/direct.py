"""Reads the bytes of a file from the disk itself, bypassing the system's page cache.

``O_DIRECT`` reads into our own buffer and leaves the cache alone: pages that readers use stay
there, nothing is pushed out for bytes that nobody needs again, and a good page does not hide a
damaged sector. (The system first writes those bytes that are not on the disk yet.) Positions and
lengths must be multiples of the disk's blocks. Some file systems refuse ``O_DIRECT``: then the
bytes come through the cache, and the pages that no reader has mapped are dropped from it.
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
        OSError: the file cannot be opened, or the disk cannot read the bytes.
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
    room = memoryview(mmap.mmap(-1, max(size, _BLOCK)))  # mapped memory starts at a page boundary
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
