"""A broker's free memory: it stays with the broker while that works, and then goes back.

mimalloc, which Arrow uses, gives back what a thread has freed when that thread next asks for
memory, and glibc's heap keeps what ``wire.allocator`` has it keep. Nobody gives anything back in a
broker that has come to rest: that is done here.
"""

from __future__ import annotations

import contextlib
import ctypes
from typing import Final

import psutil
import pyarrow as pa

from spark_stream.broker.serving.memory import release_memory

SPARE_BYTES: Final = 192 << 20
"""Free memory that a broker may keep: less is not worth the work of giving it back."""

LOOK_S: Final = 1.0
"""How often a broker looks for free memory."""

_PRIMER_BYTES: Final = 40 << 20


class SpareMemory:
    """Finds free memory that nobody has needed for a while, and gives it back."""

    def __init__(self) -> None:
        self._process = psutil.Process()
        self._pool = pa.default_memory_pool()
        self._trim = getattr(ctypes.CDLL(None), "malloc_trim", lambda _: 0)  # glibc's alone
        self._seen = False

    def give_back(self) -> None:
        """Look for unused memory.

        Return it to the system at the second look in a row that finds much.
        """
        facts = self._process.memory_info()
        much = facts.rss - facts.shared - self._pool.bytes_allocated() > SPARE_BYTES
        if much and self._seen:
            # mimalloc overlooks what other threads freed until this one frees something large.
            with contextlib.suppress(MemoryError):
                pa.allocate_buffer(_PRIMER_BYTES)
            release_memory()
            self._trim(0)  # gRPC's share
        self._seen = much
