"""The limit of a broker's Arrow memory.

Arrow's allocator reads its settings when the process begins, so the parent of a broker sets them.
"""

from __future__ import annotations

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
