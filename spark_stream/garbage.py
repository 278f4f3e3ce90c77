"""Short pauses of Python's garbage collector, in brokers and in Spark's Python workers.

A full collection looks at each object, and the whole process waits: for 0.45 s in a broker with
4,000 partitions, and for 30 ms after each task of a worker. Almost all objects exist as long as
their partition, or are parts of modules. So the survivors of a full collection are frozen: later
collections do not look at them.

Objects without references are still freed immediately. Only a frozen cycle stays. Therefore all
objects are examined again when twice as many are frozen as after the last such examination, or as
at any time since.

An incremental collector, as in some releases of Python 3.14, makes few full collections by itself.
Then this module has almost no effect.
"""

from __future__ import annotations

import gc
import math
import time
from collections.abc import Callable
from functools import cache
from typing import Any, Final

_OLDEST: Final = 2
LONG_S: Final = 0.005
"""The time of a full collection above which its survivors are frozen."""


@cache
def freeze_survivors() -> None:
    """Freeze the survivors of each later full collection in this process, if it takes long.

    Call this only in a process of isolog's or Spark's own, not in the program of a user.
    """
    gc.callbacks.append(Survivors().on_collection)


class Survivors:
    """The rule for a freeze, and for an examination of all objects.

    No call here may make a reference to an object of another thread, as `gc.get_objects` does:
    CPython refuses to shorten a tuple with two references, so the other thread would fail.
    """

    def __init__(self, now: Callable[[], float] = time.perf_counter) -> None:
        self._now = now
        self._frozen = 0
        self._examined = math.inf  # the least number of frozen objects since all were examined
        self._began = 0.0

    def on_collection(self, phase: str, info: dict[str, Any]) -> None:
        """Take the interpreter's report of a collection, just before it and just after it."""
        if info["generation"] != _OLDEST:
            return
        if phase == "start":
            if self._frozen >= 2 * self._examined:
                gc.unfreeze()
                self._frozen, self._examined = 0, math.inf
            self._began = self._now()
        elif self._now() - self._began >= LONG_S:
            gc.freeze()
            self._frozen = gc.get_freeze_count()
            self._examined = min(self._examined, self._frozen)
