"""The repeated tasks of a broker process, each on its own thread."""

from __future__ import annotations

import threading
from collections.abc import Callable, Generator
from typing import Any, Final

from spark_stream.errors import IsologError
from spark_stream.loggers import logger_of
from spark_stream.scripts.steps import Script

logger = logger_of(__name__)

Task = Callable[[], Script[Any] | float | None]
"""Does the task, or returns a script that does. In the first case it may return the next pause."""

_AFTER_ERROR_S: Final = 0.1  # otherwise a failing task without a pause would keep a processor busy


class BackgroundTasks:
    """The tasks of one process, until ``stop_asked`` is set."""

    def __init__(self, run: Callable[[Script[Any]], Any], stop_asked: threading.Event) -> None:
        """Create the tasks. ``run`` drives a script to its end."""
        self._run = run
        self._stop_asked = stop_asked
        self._threads: list[threading.Thread] = []

    def start(self, name: str, pause_s: float, task: Task) -> None:
        """Start a thread that pauses, does the task, and repeats.

        An error with a known reason is logged in one line, once while the reason lasts.
        """
        thread = threading.Thread(
            target=self._repeat, args=(name, pause_s, task), name=name, daemon=True
        )
        thread.start()
        self._threads.append(thread)

    def join(self, timeout_s: float | None = None) -> None:
        """Wait for each thread to end, for this time at most."""
        for thread in self._threads:
            thread.join(timeout_s)

    def _repeat(self, name: str, pause_s: float, task: Task) -> None:
        pause, complaint = pause_s, ""  # the code of the last error
        while not self._stop_asked.wait(pause):
            try:
                done = task()
                if isinstance(done, Generator):
                    self._run(done)
                    done = None
                pause, complaint = done or pause_s, ""
            except IsologError as error:
                pause = max(pause_s, _AFTER_ERROR_S)
                if complaint != error.code and not self._stop_asked.is_set():
                    complaint = error.code
                    logger.error("background task %r failed: %s", name, error)
            except Exception:
                pause = max(pause_s, _AFTER_ERROR_S)
                if not self._stop_asked.is_set():
                    logger.exception("background task %r failed", name)
