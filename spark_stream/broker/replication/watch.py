"""Ends streams whose peer has died without a word: a cut network says nothing.

One thread for all streams of a broker. It never reads or writes: who does may be stuck.
"""

from __future__ import annotations

import logging
import socket
import threading
from collections.abc import Iterable
from contextlib import suppress
from typing import Protocol

from spark_stream.broker.replication.settings import ReplicationSettings
from spark_stream.environment import Clock
from spark_stream.wire.sockets import heard_ago

logger = logging.getLogger(__name__)


class Watched(Protocol):
    """One side of a stream."""

    def look(self, now: float) -> None:
        """Ends the stream if its peer is dead. Waits for nothing; ``now`` is the monotonic time."""


class Watch:
    """Looks at every stream twice in a beat while there are any."""

    def __init__(self, settings: ReplicationSettings, clock: Clock) -> None:
        self._pause_s = settings.beat_s / 2
        self._clock = clock
        self._changed = threading.Condition()
        self._streams: set[Watched] = set()
        self._stopped = False
        self._thread = threading.Thread(
            target=self._run, name="isolog-replication-watch", daemon=True
        )
        self._thread.start()

    def add(self, stream: Watched) -> None:
        """Looks at a stream from now on."""
        with self._changed:
            self._streams.add(stream)
            self._changed.notify()

    def remove(self, stream: Watched) -> None:
        """Looks at it no more."""
        with self._changed:
            self._streams.discard(stream)

    def stop(self) -> None:
        """Ends the thread."""
        with self._changed:
            self._stopped = True
            self._changed.notify()
        self._thread.join()

    def _run(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._streams or self._stopped)
                self._changed.wait_for(lambda: self._stopped, self._pause_s)
                if self._stopped:
                    return
                streams = list(self._streams)
            for stream in streams:
                try:
                    stream.look(self._clock.monotonic())
                except Exception:
                    logger.exception("the watch of a stream of replication")


def is_silent(connections: Iterable[socket.socket], limit_s: float) -> bool:
    """Whether nothing came on any of these connections for so long.

    A large frame on a slow line is not silence. Unix sockets do not tell, and count as silent.
    """
    for each in connections:
        if each.family == socket.AF_UNIX:
            continue
        with suppress(OSError):  # closed meanwhile
            if heard_ago(each) < limit_s:
                return False
    return True
