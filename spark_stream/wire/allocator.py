"""The memory of a process: the limit of a broker's Arrow memory, and glibc's freed memory.

Arrow's allocator reads its settings when the process begins, so the parent of a broker sets them.
"""

from __future__ import annotations

import ctypes
from functools import cache
from typing import Final

MEMORY_BYTES_DEFAULT: Final = 2 << 30
"""The memory of a broker for batches: eight of the largest, or some thousands of usual ones."""

MEMORY_BYTES_MIN: Final = 128 << 20
"""The allocator's own pieces are 32 MiB: with less, not even small batches would find room."""


def allocator_settings(memory_bytes: int) -> dict[str, str]:
    """Return the environment that limits a process's Arrow memory to this, rounded up to MiB.

    mimalloc reserves one arena, which costs no memory until it is used, and requests no more from
    the system. Source: mimalloc's documentation, "Environment Options".
    """
    return {
        "ARROW_DEFAULT_MEMORY_POOL": "mimalloc",
        "MIMALLOC_RESERVE_OS_MEMORY": f"{-(-memory_bytes // (1 << 20))}MiB",
        "MIMALLOC_DISALLOW_OS_ALLOC": "1",
    }


_M_TRIM_THRESHOLD: Final = -1  # mallopt(3): the free memory at the end of a heap
_M_TOP_PAD: Final = -2  # the surplus when a heap grows
_M_MMAP_THRESHOLD: Final = -3  # larger blocks are never in a heap
_KEPT: Final = ((_M_TRIM_THRESHOLD, 64 << 20), (_M_TOP_PAD, 1 << 20), (_M_MMAP_THRESHOLD, 32 << 20))


@cache
def keep_free_memory() -> None:
    """Make glibc keep the memory of messages from one to the next. Other systems ignore this.

    Spark's workers read into buffers in glibc's heap. When a large one is freed, glibc returns its
    memory to the system, and requests it again for the next: that is half of the cost of receiving
    a message. These bounds are the highest that glibc sets itself.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        for setting, size in _KEPT:
            mallopt(setting, size)
