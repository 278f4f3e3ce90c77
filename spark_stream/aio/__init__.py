"""isolog for asyncio: ``from isolog import aio`` and ``async with aio.connect(...) as log``.

The methods are those of :mod:`isolog`'s client, and mean the same; those that may wait are
coroutines. What waits does so on a thread, and the same client is beneath. So connections, retries,
batches and fetches ahead are shared with whatever else the process does with the log.

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
