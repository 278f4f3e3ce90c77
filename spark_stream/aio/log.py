"""``connect()`` for asyncio, and the log that it opens."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Coroutine
from contextlib import suppress
from functools import wraps
from typing import Any, ParamSpec, TypeVar

from spark_stream.aio.calls import A, Asynchronous, Closable, Opener, on_a_thread
from spark_stream.aio.consumer import AsyncConsumer
from spark_stream.aio.producer import AsyncProducer
from spark_stream.client import log as sync

P = ParamSpec("P")
T = TypeVar("T")
S = TypeVar("S", bound=Closable)


def _opens(
    function: Callable[P, S], kind: Callable[[S], A], under_way: set[asyncio.Task[Any]]
) -> Callable[P, Opener[A]]:
    """Return a function that opens what this one returns, on a thread, and wraps it.

    What was opened for a caller that was cancelled meanwhile is closed: on the thread, as the loop
    may end, or here, if it was opened at that very moment. ``under_way``: the tasks of all this.
    """

    @wraps(function)
    def opener(*args: P.args, **kwargs: P.kwargs) -> Opener[A]:
        async def open_object() -> A:
            is_wanted = True

            def open_on_thread() -> S:
                found = function(*args, **kwargs)
                if not is_wanted:
                    found.close()
                return found

            def begin(work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
                task = asyncio.create_task(work)
                under_way.add(task)
                task.add_done_callback(under_way.discard)
                return task

            call = begin(asyncio.to_thread(open_on_thread))
            try:
                return kind(await asyncio.shield(call))
            except asyncio.CancelledError:
                is_wanted = False
                begin(_close(call))
                raise

        return Opener(open_object)

    return opener


async def _close(call: asyncio.Task[Any]) -> None:
    with suppress(Exception):  # it was not opened
        await asyncio.to_thread((await call).close)


class AsyncLog(Asynchronous[sync.Log]):
    """A connection to a log, for the tasks of one event loop. Close it, or use ``async with``.

    :func:`connect` returns it. Its methods are those of the blocking client, as coroutines. A call
    runs on a thread.
    """

    create_topic = on_a_thread(sync.Log.create_topic)
    alter_topic = on_a_thread(sync.Log.alter_topic)
    delete_topic = on_a_thread(sync.Log.delete_topic)
    trim = on_a_thread(sync.Log.trim)
    plan_trim = on_a_thread(sync.Log.plan_trim)
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
    reset_consumer = on_a_thread(sync.Log.reset_consumer)

    read = on_a_thread(sync.Log.read)

    def __init__(self, log: sync.Log) -> None:
        super().__init__(log)
        self._openings = set[asyncio.Task[Any]]()

    def producer(self, **settings: Any) -> Opener[AsyncProducer]:
        """Open a producer: ``async with log.producer() as producer``.

        Args:
            settings: The settings of ``isolog.Log.producer``.
        """
        return _opens(self.sync.producer, AsyncProducer, self._openings)(**settings)

    def consumer(
        self, topics: str | list[str] | re.Pattern[str], **settings: Any
    ) -> Opener[AsyncConsumer]:
        """Open a consumer: ``async with log.consumer("orders") as consumer``.

        Args:
            topics: A name, a list of names, or a compiled pattern that matches whole names.
            settings: The other options of ``isolog.Log.consumer``.
        """
        return _opens(self.sync.consumer, AsyncConsumer, self._openings)(topics, **settings)

    async def _end(self, close: Callable[[], object]) -> None:
        await asyncio.gather(*self._openings, return_exceptions=True)
        await super()._end(close)


connect = _opens(sync.connect, AsyncLog, set())
