"""The fetching threads behind a consumer: one a partition, ahead of whoever iterates.

A stop ends their fetches at once, long polls included, and waits for them: so when a
consumer is closed none of its threads is left.
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Iterator
from typing import Final, NamedTuple

from spark_stream.client.reading.cuts import Key
from spark_stream.client.reading.fetching import (
    Cancellation,
    Fetched,
    Source,
    read_range,
)
from spark_stream.client.reading.range_core import RangeCore
from spark_stream.consistency.lineage import NOTHING_KNOWN, Lineage
from spark_stream.errors import InternalError, IsologError

POLL_MS: Final = 2_000
FETCH_BYTES: Final = 4 << 20
WATCH_S: Final = 2.0
_AHEAD_BATCHES: Final = 4  # per partition; with FETCH_BYTES this bounds the memory
_TICK_S: Final = 0.25
_STOP_S: Final = 2.0  # what is only just asked for cannot be cancelled before it is answered


class Asked(NamedTuple):
    """What one thread fetches; ``lineage``: that of ``start``."""

    key: Key
    source: Source
    start: int
    end: int | None
    lineage: Lineage = NOTHING_KNOWN


_Item = tuple[Key, Fetched | None, IsologError | None]


class Feed:
    """The fetching threads of one iteration. What they fetched ahead is dropped when it stops.

    ``watch`` is called every two seconds meanwhile; an error of it that lasts ends the iteration.
    Records that are gone are an error too, unless ``fail_on_loss`` is false.
    """

    def __init__(
        self,
        sources: list[Asked],
        watch: Callable[[], None] | None = None,
        *,
        fail_on_loss: bool = True,
    ) -> None:
        self._fail_on_loss = fail_on_loss
        self._stopped = threading.Event()
        self._queue: queue.Queue[_Item] = queue.Queue(_AHEAD_BATCHES * len(sources))
        self._running = len(sources)
        self._cancellations = [Cancellation() for _ in sources]
        self._threads = [
            threading.Thread(
                target=self._follow,
                args=(asked, cancellation),
                name=f"isolog-fetch-{asked.key[0]}-{asked.key[1]}",
                daemon=True,
            )
            for asked, cancellation in zip(sources, self._cancellations, strict=True)
        ]
        if watch is not None and sources:
            key = sources[0].key
            self._threads.append(
                threading.Thread(
                    target=self._watch, args=(key, watch), name="isolog-watch", daemon=True
                )
            )
        for thread in self._threads:
            thread.start()

    @property
    def running(self) -> bool:
        """Whether more may come."""
        return self._running > 0 and not self._stopped.is_set()

    def fetched(self, idle_s: Callable[[], float]) -> Iterator[tuple[Key, Fetched]]:
        """Yield what the threads fetch, until all have ended, one fails, or the feed is stopped.

        Also end once nothing came for as many seconds as ``idle_s`` has left.
        """
        while self.running:
            found = self.take(max(0.0, min(_TICK_S, idle_s())))
            if found is not None:
                yield found
            elif idle_s() <= 0:
                return

    def take(self, wait_s: float = _TICK_S) -> tuple[Key, Fetched] | None:
        """The next of it; None if nothing came for a moment, or a thread has ended."""
        try:
            key, fetched, error = self._queue.get(timeout=wait_s)
        except queue.Empty:
            return None
        if error is not None:
            raise error
        if fetched is None:
            self._running -= 1
            return None
        return key, fetched

    def stop(self) -> None:
        """Ends the fetches and their threads; from any thread, any number of times."""
        self._stopped.set()
        for cancellation in self._cancellations:
            cancellation.cancel()
        deadline = time.monotonic() + _STOP_S
        for thread in self._threads:
            if thread is not threading.current_thread():  # a garbage collection is on any thread
                thread.join(max(0.0, deadline - time.monotonic()))

    def _follow(self, asked: Asked, cancellation: Cancellation) -> None:
        key = asked.key
        try:
            self._fetch(asked, cancellation)
        except IsologError as error:
            self._put((key, None, error))
        except Exception as error:  # a defect: whoever iterates must see it, not wait for ever
            self._put((key, None, InternalError(f"{key[0]}/{key[1]}: {error!r}")))
        else:
            self._put((key, None, None))

    def _fetch(self, asked: Asked, cancellation: Cancellation) -> None:
        key, source, start, end, lineage = asked
        core = RangeCore(
            start,
            end,
            lineage,
            patience_s=source.router.timeout_s,
            checks=end is not None and start > end,  # maybe there never was such an offset
            fail_on_loss=self._fail_on_loss,
        )
        wait_ms = POLL_MS if end is None else 0
        for fetched in read_range(
            source, core, wait_ms, FETCH_BYTES, cancellation, self._stopped.wait
        ):
            if not self._put((key, fetched, None)):
                return

    def _watch(self, key: Key, watch: Callable[[], None]) -> None:
        while not self._stopped.wait(WATCH_S):
            try:
                watch()
            except IsologError as error:
                if not error.retriable:
                    self._put((key, None, error))
                    return

    def _put(self, item: _Item) -> bool:
        while not self._stopped.is_set():
            try:
                self._queue.put(item, timeout=_TICK_S)
            except queue.Full:
                continue
            return True
        return False
