"""Calls whose broker is silent are ended once another broker leads their partition.

A broker that dies ends its connections, and its callers know at once. One that is stopped, or cut
off, keeps them: its callers would wait for their whole time, though the partition may have had
another leader for long. So whoever waits says for whom, and how long silence is no surprise;
beyond that a thread asks the other brokers who leads the partition now.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from typing import Final, Protocol

from spark_stream.client.connecting.routes import Route
from spark_stream.errors import IsologError

logger = logging.getLogger(__name__)

SILENCE_S: Final = 1.0
TICK_S: Final = 0.5
_ASK_S: Final = 4.0  # two brokers that do not answer, and one that does
_IDLE_TICKS: Final = 4  # without anything to watch the thread ends


class LeaderNews(Protocol):
    """Who is asked (the router)."""

    def refresh(self, topic: str, topic_id: str, timeout_s: float) -> None: ...

    def replaced(self, route: Route) -> bool: ...


Owed = Callable[[], Route | None]
"""Along which route a broker owes an answer now; None: it owes none."""


class Watched:
    """A call that waits for its broker from its beginning, and after each ``wake``."""

    def __init__(
        self, watch: Watch, owed: Owed, patience_s: float, moved: Callable[[], None]
    ) -> None:
        self.moved = moved
        self._owed = owed
        self._watch = watch
        self._patience_s = patience_s
        self._since: float | None = time.monotonic()

    def rest(self) -> None:
        """The broker has answered; nothing more is expected of it at the moment."""
        self._since = None

    def wake(self) -> None:
        """From now on the broker is expected to answer."""
        self._since = time.monotonic()

    def silent(self, now: float) -> Route | None:
        """The route along which the broker has owed an answer for too long, if it does."""
        since = self._since
        return self._owed() if since is not None and now - since > self._patience_s else None

    def end(self) -> None:
        """The call is over."""
        self._watch.forget(self)


class Watch:
    """The calls of one client that wait for brokers, and the thread that looks after them.

    The thread looks every ``tick_s`` seconds. A broker that owes an answer may be silent for
    ``silence_s`` seconds before anyone is asked, beyond what its call has patience for.
    """

    def __init__(
        self, news: LeaderNews, tick_s: float = TICK_S, silence_s: float = SILENCE_S
    ) -> None:
        self._news = news
        self._tick_s = tick_s
        self._silence_s = silence_s
        self._lock = threading.Lock()
        self._calls: set[Watched] = set()
        self._running = False

    def begin(self, owed: Owed, patience_s: float, moved: Callable[[], None]) -> Watched:
        """Watches a call that begins now. ``patience_s``: how long it may well be silent.

        ``moved`` is called, perhaps more than once, when its leader was replaced; it does not wait.
        """
        found = Watched(self, owed, patience_s + self._silence_s, moved)
        with self._lock:
            self._calls.add(found)
            if not self._running:
                self._running = True
                threading.Thread(target=self._run, name="isolog-leaders", daemon=True).start()
        return found

    def forget(self, call: Watched) -> None:
        """Watches it no more."""
        with self._lock:
            self._calls.discard(call)

    def _run(self) -> None:
        idle = 0
        while True:
            time.sleep(self._tick_s)
            with self._lock:
                idle = 0 if self._calls else idle + 1
                if idle > _IDLE_TICKS:
                    self._running = False
                    return
                calls = list(self._calls)
            try:
                self._look_after(calls)
            except Exception:
                logger.exception("looking after calls that wait")

    def _look_after(self, calls: list[Watched]) -> None:
        now = time.monotonic()
        silent = [each for each in calls if each.silent(now)]
        routes = [route for each in silent if (route := each.silent(now)) is not None]
        asked = {(route.topic, route.topic_id): None for route in routes}
        for topic, topic_id in asked:
            try:
                self._news.refresh(topic, topic_id, _ASK_S)
            except IsologError as error:
                logger.debug("nobody says who leads topic %r: %s", topic, error)
        for each in silent:
            route = each.silent(time.monotonic())
            if route is not None and self._news.replaced(route):
                each.moved()
