"""isolog for asyncio: ``from isolog import aio`` and ``async with aio.connect(...) as log``.

It has the methods of the client in :mod:`isolog`. Methods that may wait are coroutines, and wait on
a thread. The blocking client does the work, so connections, retries, batches and prefetching are
shared with the rest of the process.

``log``    ``connect()``, the log that it opens, its producers and consumers
``calls``  waiting calls on threads
"""

from __future__ import annotations

from spark_stream.aio.log import AsyncConsumer, AsyncLog, AsyncProducer, SentWrite, connect

__all__ = ["AsyncConsumer", "AsyncLog", "AsyncProducer", "SentWrite", "connect"]
