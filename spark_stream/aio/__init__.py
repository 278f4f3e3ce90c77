"""isolog for asyncio: ``from isolog import aio`` and ``async with aio.connect(...) as log``.

It has the methods of the client in :mod:`isolog`. Those that may wait are coroutines, and wait on a
thread. The blocking client does the work, so connections, retries, batches and fetches ahead are
shared with the rest of the process.

``log``        ``connect()``, and the log that it opens
``producer``   writes records; what can be sent at once is sent without a thread
``consumer``   reads them; only waiting needs a thread
``calls``      what waits, on threads
"""

from __future__ import annotations

from spark_stream.aio.consumer import AsyncConsumer
from spark_stream.aio.log import AsyncLog, connect
from spark_stream.aio.producer import AsyncProducer, SentWrite

__all__ = ["AsyncConsumer", "AsyncLog", "AsyncProducer", "SentWrite", "connect"]
