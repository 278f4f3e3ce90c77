"""The fetching threads behind a consumer: one a partition, ahead of whoever iterates."""

from __future__ import annotations

import queue
import threading
import time
from collections import deque
from collections.abc import Iterator
from typing import Final

from spark_stream.client.cuts import Key
from spark_stream.client.fetching import Fetched, Source, fetch_once
from spark_stream.errors import InternalError, IsologError

POLL_MS: Final = 2_000
FETCH_BYTES: Final = 4 << 20
_AHEAD_BATCHES: Final = 4  # per partition; with FETCH_BYTES this bounds the memory
_RETRY_PAUSE_S: Final = 0.1
_TICK_S: Final = 0.25

_Item = tuple[Key, Fetched | None, IsologError | None]


class Feed:
    """The fetching threads of one iteration. What they fetched ahead is dropped when it stops."""

    def __init__(self, sources: list[tuple[Key, Source, int, int | None]]) -> None:
        self._stopped = threading.Event()
        self._queue: queue.Queue[_Item] = queue.Queue(_AHEAD_BATCHES * len(sources))
        self._running = len(sources)
        for key, source, start, end in sources:
            threading.Thread(
                target=self._follow,
                args=(key, source, start, end),
                name=f"isolog-fetch-{key[0]}-{key[1]}",
                daemon=True,
            ).start()

    def fetched(self) -> Iterator[tuple[Key, Fetched]]:
        """What the threads fetch, until all have ended, one fails, or the feed is stopped."""
        while self._running and not self._stopped.is_set():
            try:
                key, fetched, error = self._queue.get(timeout=_TICK_S)
            except queue.Empty:
                continue
            if error is not None:
                raise error
            if fetched is None:
                self._running -= 1
            else:
                yield key, fetched

    def stop(self) -> None:
        self._stopped.set()

    def _follow(self, key: Key, source: Source, start: int, end: int | None) -> None:
        try:
            self._fetch(key, source, start, end)
        except IsologError as error:
            self._put((key, None, error))
        except Exception as error:  # a defect: whoever iterates must see it, not wait for ever
            self._put((key, None, InternalError(f"{key[0]}/{key[1]}: {error!r}")))
        else:
            self._put((key, None, None))

    def _fetch(self, key: Key, source: Source, start: int, end: int | None) -> None:
        position = start
        failing_since: float | None = None
        partitions: int | None = None
        if end is not None and start > end:  # empty, or there never was such an offset
            deque(fetch_once(source, start, end), maxlen=0)
        while not self._stopped.is_set() and (end is None or position < end):
            try:
                wait = POLL_MS if end is None else 0
                for fetched in fetch_once(source, position, end, wait, FETCH_BYTES):
                    failing_since = None
                    moved = fetched.next != position
                    position = fetched.next
                    told = fetched.partitions not in (None, partitions)
                    partitions = fetched.partitions or partitions
                    worth = fetched.batch.num_rows or moved or told
                    if worth and not self._put((key, fetched, None)):
                        return
            except IsologError as error:
                now = time.monotonic()
                failing_since = failing_since or now
                lasting = now - failing_since > source.connection.timeout_s
                if not error.retriable or lasting:
                    raise
                self._stopped.wait(_RETRY_PAUSE_S)

    def _put(self, item: _Item) -> bool:
        while not self._stopped.is_set():
            try:
                self._queue.put(item, timeout=_TICK_S)
            except queue.Full:
                continue
            return True
        return False
