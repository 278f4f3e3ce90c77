"""The memory limit for the batches in a broker.

A few KiB of compressed data can decode to gigabytes, and Flight decodes a batch before the broker
can check it. So the limit is in Arrow's allocator: an allocation above it fails, and with it only
the call that needed it.
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.abc import MetaPathFinder
from typing import Final

import psutil
import pyarrow as pa

from spark_stream.errors import BatchTooLarge, BrokerBusy, IsologError
from spark_stream.loggers import logger_of
from spark_stream.operating_system import own_memory, trim_heap
from spark_stream.wire.allocator import allocator_settings

SPARE_BYTES: Final = 192 << 20
"""Free memory that a broker may keep, because the return of less is not worth the work."""

LOOK_S: Final = 1.0
"""The seconds between two checks for free memory."""

_PRIMER_BYTES: Final = 40 << 20


class FreeMemory:
    """The free memory of this process, which is returned to the system after a while."""

    def __init__(self) -> None:
        self._process = psutil.Process()
        self._pool = pa.default_memory_pool()
        self._was_much = False

    def release(self) -> None:
        """Check for unused memory, and return it at the second check in a row that finds much."""
        try:
            resident = own_memory(self._process)
        except OSError:  # such as without a free descriptor
            return
        much = resident - self._pool.bytes_allocated() > SPARE_BYTES
        if much and self._was_much:
            # mimalloc collects memory that other threads freed after this one frees a large block.
            with contextlib.suppress(MemoryError):
                pa.allocate_buffer(_PRIMER_BYTES)
            release_memory()
            trim_heap()  # gRPC's share
        self._was_much = much


logger = logger_of(__name__)


def limit_memory(memory_bytes: int) -> None:
    """Restart this process with the same arguments and a memory limit, unless it has the limit.

    Call this before any file or thread is opened. The process keeps its id.
    """
    wanted = allocator_settings(memory_bytes)
    if any(os.environ.get(name) != value for name, value in wanted.items()):
        os.environ.update(wanted)
        sys.stdout.flush()
        sys.stderr.flush()
        os.execv(sys.executable, [sys.executable, *sys.orig_argv[1:]])
    if pa.default_memory_pool().backend_name != "mimalloc":
        logger.warning("this pyarrow has no mimalloc; the broker's memory is not limited")


def block_pandas() -> None:
    """Block the import of pandas in this process.

    If pandas is installed, pyarrow imports it for conversions that do not need it. That would take
    half of a broker's memory and delay the first answer by a third of a second.
    """
    sys.meta_path.insert(0, _NoPandas())


class _NoPandas(MetaPathFinder):
    def find_spec(self, fullname: str, path: object, target: object = None) -> None:
        if fullname == "pandas":
            raise ModuleNotFoundError("a broker runs without pandas", name=fullname)


def memory_error(memory_bytes: int) -> IsologError:
    """Return the error for a batch without memory.

    It is BrokerBusy if other batches use much of the memory, so that a later attempt may succeed.
    Otherwise it is BatchTooLarge.
    """
    taken = pa.total_allocated_bytes()
    if taken > memory_bytes // 4:
        return BrokerBusy(
            f"the batches in process use {taken} of the broker's {memory_bytes} bytes of memory"
            " for batches",
            memory_bytes=memory_bytes,
        )
    return BatchTooLarge(
        f"the decoded batch needs more than the broker's {memory_bytes} bytes of memory for"
        " batches",
        hint="Send smaller batches, or give the broker more with memory_bytes.",
        memory_bytes=memory_bytes,
    )


@contextmanager
def memory_errors(memory_bytes: int) -> Iterator[None]:
    """Replace a failed allocation for a batch by :func:`memory_error`."""
    try:
        yield
    except pa.ArrowMemoryError:
        raise memory_error(memory_bytes) from None


def release_memory() -> None:
    """Return unused memory to the system. This takes microseconds if there is little.

    Call this about every second, because an idle broker returns no memory otherwise.
    """
    pa.default_memory_pool().release_unused()
