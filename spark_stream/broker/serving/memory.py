"""How much memory the batches in a broker may take, whatever arrives.

Flight decodes a batch before anybody can look at it, and a few KiB of compressed data can become
gigabytes. So the bound is in Arrow's allocator: an allocation that finds no room fails, and with it
the one call that needed it; all other calls go on.
"""

from __future__ import annotations

import contextlib
import ctypes
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
from spark_stream.wire.allocator import allocator_settings

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
        self._trim = getattr(ctypes.CDLL(None), "malloc_trim", None)  # only glibc has it
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
            if self._trim is not None:
                self._trim(0)  # gRPC's share
        self._seen = much


logger = logger_of(__name__)


def bound_memory(memory_bytes: int) -> None:
    """Restart this process, with the same arguments, unless its memory is bounded already.

    To be called before anything is opened or started. The process keeps its id.
    """
    wanted = allocator_settings(memory_bytes)
    if any(os.environ.get(name) != value for name, value in wanted.items()):
        os.environ.update(wanted)
        sys.stdout.flush()
        sys.stderr.flush()
        os.execv(sys.executable, [sys.executable, *sys.orig_argv[1:]])
    if pa.default_memory_pool().backend_name != "mimalloc":
        logger.warning("this pyarrow has no mimalloc: the broker's memory has no bound")


def keep_pandas_out() -> None:
    """Keep pandas out of this process from now on.

    pyarrow imports it if it is installed, for conversions that do not need it. That would take half
    of a broker's memory, and delay the first answer by a third of a second.
    """
    sys.meta_path.insert(0, _NoPandas())


class _NoPandas(MetaPathFinder):
    def find_spec(self, fullname: str, path: object, target: object = None) -> None:
        if fullname == "pandas":
            raise ModuleNotFoundError("a broker runs without pandas", name=fullname)


def memory_error(memory_bytes: int) -> IsologError:
    """Return the error of a batch for which there is no memory.

    BrokerBusy: other batches have much of the memory now; later there is room. BatchTooLarge: the
    batch needs more than there is.
    """
    taken = pa.total_allocated_bytes()
    if taken > memory_bytes // 4:
        return BrokerBusy(
            f"the batches under way take {taken} of the {memory_bytes} bytes that the broker"
            " has for them",
            memory_bytes=memory_bytes,
        )
    return BatchTooLarge(
        f"decoded, the batch needs more than the {memory_bytes} bytes that the broker has"
        " for all batches",
        hint="Send smaller batches, or give the broker more with memory_bytes.",
        memory_bytes=memory_bytes,
    )


@contextmanager
def memory_errors(memory_bytes: int) -> Iterator[None]:
    """Turn a lack of memory for a batch into :func:`memory_error`."""
    try:
        yield
    except pa.ArrowMemoryError:
        raise memory_error(memory_bytes) from None


def release_memory() -> None:
    """Return unused memory to the system. Takes microseconds if there is little.

    To be called every second or so: nobody else does it in a broker that has come to rest.
    """
    pa.default_memory_pool().release_unused()
