"""When to force a log whose topic has ``flush=interval``."""

from __future__ import annotations

from spark_stream.storage.settings import Flush, LogSettings


class FlushTimer:
    """The timer of one log. Moments are seconds, all told by one monotonic clock.

    The first question starts the timer: what is in the log by then waits for one interval.
    """

    def __init__(self) -> None:
        self._started: float | None = None

    def next_due(self, settings: LogSettings, now: float) -> float | None:
        """Return when the log must be forced next; None: its topic has no interval."""
        if settings.flush is not Flush.INTERVAL:
            return None
        if self._started is None:
            self._started = now
        return self._started + settings.flush_ms / 1000

    def take_due(self, settings: LogSettings, now: float) -> bool:
        """Return whether the log must be forced now; if so, the next interval begins."""
        due = self.next_due(settings, now)
        if due is None or due > now:
            return False
        self._started = now
        return True
