"""How a process gets a bound under all memory that Arrow takes: settings of its allocator.

The allocator reads them when the process begins, so whoever starts a broker gives them to it.
"""

from __future__ import annotations

from typing import Final

MEMORY_BYTES_DEFAULT: Final = 2 << 30
"""What a broker may take for batches: eight of the largest, or some thousands of usual ones."""

MEMORY_BYTES_MIN: Final = 128 << 20
"""The allocator's own pieces are 32 MiB: with less, not even small batches would find room."""


def allocator_settings(memory_bytes: int) -> dict[str, str]:
    """The environment of a process whose Arrow memory is at most this much, rounded up to MiB.

    mimalloc sets one arena aside, which costs nothing until it is used, and asks the system for
    no more. Source: mimalloc's documentation, "Environment Options".
    """
    return {
        "ARROW_DEFAULT_MEMORY_POOL": "mimalloc",
        "MIMALLOC_RESERVE_OS_MEMORY": f"{-(-memory_bytes // (1 << 20))}MiB",
        "MIMALLOC_DISALLOW_OS_ALLOC": "1",
    }
