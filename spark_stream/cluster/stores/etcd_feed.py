"""Follows a range of etcd's keys by a watch, on a thread of its own.

A watch that ends is begun again, at another member, from the revision that was seen last. If etcd
has compacted that revision away, the listener forgets what it knows, and hears only later changes.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from typing import Final, Protocol

from spark_stream.cluster.stores.etcd_client import (
    RANGE,
    EtcdClient,
    EtcdCompacted,
    EtcdWatch,
    Json,
    encoded,
)
from spark_stream.errors import MetadataLost, MetadataUnavailable, StorageFailure
from spark_stream.loggers import logger_of

logger = logger_of(__name__)

_PAUSE_S: Final = 0.1
_LOST_PAUSE_S: Final = 1.0
_TOLD_S: Final = 10.0  # trouble is told once in this time
_WATCHES: Final = 3  # how many members are tried before a wait for a revision fails


class FeedListener(Protocol):
    """What hears of changes. It is called with the feed's lock held, and must not wait."""

    def take(self, events: Sequence[Json]) -> None:
        """Take changes, in the order of their revisions."""

    def forget(self, revision: int) -> None:
        """Forget everything: changes up to this revision may have been missed."""


class EtcdFeed:
    """The changes of the keys in ``[start, end)``, from :meth:`start` to :meth:`close`."""

    def __init__(
        self,
        client: EtcdClient,
        start: bytes,
        end: bytes,
        check: Callable[[], None] = lambda: None,
    ) -> None:
        """``check`` runs before each watch, and raises MetadataLost if etcd has lost changes."""
        self._client = client
        self._check = check
        self._range = (start, end)
        self.changed = threading.Condition()  # guards what follows, and what the listener knows
        self.seen = 0
        """The revision up to which the listener has heard everything."""
        self._listener: FeedListener | None = None
        self._thread: threading.Thread | None = None
        self._watch: EtcdWatch | None = None
        self._closed = False

    def start(self, revision: int, listener: FeedListener) -> None:
        """Follow the changes after a revision, unless that goes on already."""
        with self.changed:
            if self._thread is not None or self._closed:
                return
            self._listener = listener
            self.seen = revision
            listener.forget(revision)
            self._thread = threading.Thread(target=self._run, name="isolog-etcd", daemon=True)
            self._thread.start()

    @property
    def is_started(self) -> bool:
        """Whether changes are followed."""
        return self._thread is not None

    def wait_for(self, revision: int) -> None:
        """Wait until everything up to a revision is heard. The caller holds :attr:`changed`.

        Raises:
            MetadataUnavailable: the watch does not come so far.
        """
        for _ in range(_WATCHES):
            if self.changed.wait_for(
                lambda: self.seen >= revision or self._closed, self._client.timeout_s
            ):
                break
            if self._watch is not None:  # its member may be behind: follow another one
                self._watch.end()
        if self.seen < revision:
            raise MetadataUnavailable(f"a watch of etcd has not come to revision {revision}")

    def restart(self) -> None:
        """End the watch. The next one begins with a check."""
        with self.changed:
            if self._watch is not None:
                self._watch.end()

    def close(self) -> None:
        """Follow no more."""
        with self.changed:
            self._closed = True
            if self._watch is not None:
                self._watch.end()
            self.changed.notify_all()
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join(self._client.timeout_s)

    def _run(self) -> None:
        told_at = -_TOLD_S
        while not self._closed:
            pause_s = _PAUSE_S
            try:
                self._follow()
            except MetadataLost:
                pause_s = _LOST_PAUSE_S
            except StorageFailure as error:
                if time.monotonic() - told_at > _TOLD_S:
                    told_at = time.monotonic()
                    logger.info("%s", error.message)
            except Exception:
                logger.exception("following etcd")
            with self.changed:
                self.changed.wait_for(lambda: self._closed, pause_s)

    def _follow(self) -> None:
        self._check()
        watch = self._client.watch(*self._range, self.seen)
        with self.changed:
            self._watch = watch
            if self._closed:
                watch.end()
        try:
            for answer in watch.answers():
                self._take(answer)
        except EtcdCompacted:
            self._begin_anew()
        finally:
            with self.changed:
                self._watch = None
            watch.close()

    def _take(self, answer: Json) -> None:
        events = answer.get("events", [])
        if not events:
            return
        assert self._listener is not None
        with self.changed:
            self._listener.take(events)
            self.seen = int(events[-1]["kv"]["mod_revision"])
            self.changed.notify_all()

    def _begin_anew(self) -> None:
        answer = self._client.read(RANGE, {"key": encoded(self._range[0])})
        assert self._listener is not None
        with self.changed:
            self.seen = int(answer["header"]["revision"])
            self._listener.forget(self.seen)
            self.changed.notify_all()
