"""isolog for asyncio: ``from isolog import aio`` and ``async with aio.connect(...) as log``."""

from __future__ import annotations

from spark_stream.aio import AsyncConsumer, AsyncLog, AsyncProducer, SentWrite, connect

__all__ = ["AsyncConsumer", "AsyncLog", "AsyncProducer", "SentWrite", "connect"]
