"""The memory of a broker: Arrow's share has a bound, and what is free goes back to the system.

What the bound covers are batches that are decoded, encoded or read. What it does not cover are the
bytes of messages that gRPC is receiving or sending: one message for each stream.
"""

from __future__ import annotations

import contextlib
import ctypes
import logging
import os
import sys
from collections.abc import Iterator
from typing import Final

import psutil
import pyarrow as pa

from spark_stream.errors import BrokerOverloaded, InvalidConfig
from spark_stream.wire.allocator import allocator_environment

logger = logging.getLogger(__name__)

SPARE_BYTES: Final = 192 << 20
"""Free memory that a broker may keep: less is not worth the work of giving it back."""

_PRIMER_BYTES: Final = 40 << 20


def bound_memory(limit_bytes: int) -> None:
    """Holds Arrow's memory below the limit, from a new start of this process if need be.

    Raises:
        InvalidConfig: the system does not grant so much.
    """
    if pa.default_memory_pool().backend_name != "mimalloc":
        logger.warning("Arrow does not use mimalloc here: memory_bytes is not enforced")
        return
    wanted = allocator_environment(limit_bytes)
    if any(os.environ.get(name) != value for name, value in wanted.items()):
        sys.stdout.flush()
        sys.stderr.flush()
        os.execve(sys.executable, [sys.executable, *sys.orig_argv[1:]], os.environ | wanted)
    try:
        pa.allocate_buffer(1 << 20)
    except MemoryError:
        raise InvalidConfig(
            f"memory_bytes: the system does not grant {limit_bytes} bytes", setting="memory_bytes"
        ) from None


@contextlib.contextmanager
def overload_told(what: str) -> Iterator[None]:
    """BrokerOverloaded for a failed allocation inside."""
    try:
        yield
    except MemoryError:
        raise BrokerOverloaded(
            f"no memory for {what}: others use what the broker may have"
        ) from None


class SpareMemory:
    """Gives free memory back that nobody needed over two looks."""

    def __init__(self) -> None:
        self._process = psutil.Process()
        self._pool = pa.default_memory_pool()
        self._trim = getattr(ctypes.CDLL(None), "malloc_trim", lambda _: 0)  # glibc's alone
        self._seen = False

    def give_back(self) -> None:
        """Looks at what is free; the second look in a row that finds much gives it back."""
        facts = self._process.memory_info()
        much = facts.rss - facts.shared - self._pool.bytes_allocated() > SPARE_BYTES
        if much and self._seen:
            # mimalloc forgets what other threads have freed until this one frees something large.
            with contextlib.suppress(MemoryError):
                pa.allocate_buffer(_PRIMER_BYTES)
            self._pool.release_unused()
            self._trim(0)  # gRPC's share
        self._seen = much
