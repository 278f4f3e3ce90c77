"""The bound on Arrow's memory, as its allocator takes it: from the environment of a new process.

A compressed batch is decoded inside Flight before any of our code sees it, so only the allocator
can refuse it. Arrow's is mimalloc, which reads its settings when the library is loaded. Whoever
starts a broker can pass them; a broker that was started without them starts itself once more.
"""

from __future__ import annotations


def allocator_environment(limit_bytes: int) -> dict[str, str]:
    """The variables under which Arrow holds at most so much, and fails beyond it with an error."""
    return {
        "MIMALLOC_RESERVE_OS_MEMORY": f"{limit_bytes >> 20}m",
        "MIMALLOC_DISALLOW_OS_ALLOC": "1",
    }
