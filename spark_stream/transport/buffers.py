"""Receive buffers that are used again.

A fresh buffer of a MiB costs the kernel more than the bytes that are received into it: each of its
pages is found, cleared and mapped. So a buffer is kept, and given out again once nothing refers to
its bytes any more: no memoryview, no Arrow array.
"""

from __future__ import annotations

import sys
from typing import Final, TypeAlias

import numpy as np
import numpy.typing as npt

from spark_stream.transport.lifetime import new_lock

Array: TypeAlias = npt.NDArray[np.uint8]

KEPT_BYTES_MAX: Final = 64 << 20
"""How much a process keeps for the next bytes, in use or not."""
_UNREFERENCED: Final = 2  # by the list, and by the argument of getrefcount


class BufferPool:
    """Buffers for received bytes; for any thread."""

    def __init__(self, kept_bytes_max: int = KEPT_BYTES_MAX) -> None:
        self._lock = new_lock()
        self._kept_bytes_max = kept_bytes_max
        self._buffers: dict[int, list[Array]] = {}  # by size, in use or not
        self._bytes = 0

    def allocate(self, size: int) -> memoryview:
        """Return a writable buffer of ``size`` bytes, with arbitrary content."""
        rounded = 1 << (size - 1).bit_length() if size > 1 else 1
        if size <= rounded // 4 * 3:
            rounded = rounded // 4 * 3
        with self._lock:
            kept = self._buffers.setdefault(rounded, [])
            for number in range(len(kept)):
                if sys.getrefcount(kept[number]) == _UNREFERENCED:
                    return kept[number][:size].data
            buffer = np.empty(rounded, np.uint8)  # takes no memory before bytes arrive
            if self._bytes + rounded <= self._kept_bytes_max or self._trim(rounded):
                kept.append(buffer)
                self._bytes += rounded
            return buffer[:size].data

    def _trim(self, wanted: int) -> bool:
        """Drop unused buffers until there is room for ``wanted`` bytes; return whether there is."""
        for size, kept in self._buffers.items():
            for number in reversed(range(len(kept))):
                if self._bytes + wanted <= self._kept_bytes_max:
                    return True
                if sys.getrefcount(kept[number]) == _UNREFERENCED:
                    del kept[number]
                    self._bytes -= size
        return self._bytes + wanted <= self._kept_bytes_max
