"""``connect()`` for asyncio, and the log that it opens."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable
from functools import wraps
from typing import Any, ParamSpec, TypeVar

from spark_stream.aio.calls import A, Asynchronous, Opener, on_a_thread
from spark_stream.aio.consumer import AsyncConsumer
from spark_stream.aio.producer import AsyncProducer
from spark_stream.client import log as sync

P = ParamSpec("P")
S = TypeVar("S")


def _opens(function: Callable[P, S], kind: Callable[[S], A]) -> Callable[P, Opener[A]]:
    """Return what has a function called on a thread, and wraps what that returns."""

    @wraps(function)
    def opening(*args: P.args, **kwargs: P.kwargs) -> Opener[A]:
        async def opened() -> A:
            call = asyncio.ensure_future(asyncio.to_thread(function, *args, **kwargs))
            try:
                return kind(await asyncio.shield(call))
            except asyncio.CancelledError:
                call.add_done_callback(_close)
                raise

        return Opener(opened)

    return opening


def _close(call: asyncio.Future[Any]) -> None:
    """Close what was opened for a caller that is gone."""
    if not call.cancelled() and call.exception() is None:
        asyncio.get_running_loop().run_in_executor(None, call.result().close)


class AsyncLog(Asynchronous[sync.Log]):
    """A connection to a log, for the tasks of one event loop. Close it, or use ``async with``."""

    create_topic = on_a_thread(sync.Log.create_topic)
    alter_topic = on_a_thread(sync.Log.alter_topic)
    delete_topic = on_a_thread(sync.Log.delete_topic)
    topics = on_a_thread(sync.Log.topics)
    describe = on_a_thread(sync.Log.describe)

    cluster = on_a_thread(sync.Log.cluster)
    move_replicas = on_a_thread(sync.Log.move_replicas)
    cancel_moves = on_a_thread(sync.Log.cancel_moves)
    elect_preferred_leaders = on_a_thread(sync.Log.elect_preferred_leaders)
    decommission = on_a_thread(sync.Log.decommission)
    recommission = on_a_thread(sync.Log.recommission)
    status = on_a_thread(sync.Log.status)

    transactions = on_a_thread(sync.Log.transactions)
    describe_transaction = on_a_thread(sync.Log.describe_transaction)
    abort_transaction = on_a_thread(sync.Log.abort_transaction)
    sinks = on_a_thread(sync.Log.sinks)
    delete_sink = on_a_thread(sync.Log.delete_sink)
    consumers = on_a_thread(sync.Log.consumers)
    describe_consumer = on_a_thread(sync.Log.describe_consumer)
    delete_consumer = on_a_thread(sync.Log.delete_consumer)

    read = on_a_thread(sync.Log.read)
    close = on_a_thread(sync.Log.close)

    def producer(self, **settings: Any) -> Opener[AsyncProducer]:
        """Open a producer; the settings are those of the client's ``log.producer``."""
        return _opens(self.sync.producer, AsyncProducer)(**settings)

    def consumer(
        self, topics: str | list[str] | re.Pattern[str], **settings: Any
    ) -> Opener[AsyncConsumer]:
        """Open a consumer; the settings are those of the client's ``log.consumer``."""
        return _opens(self.sync.consumer, AsyncConsumer)(topics, **settings)


connect = _opens(sync.connect, AsyncLog)
