"""Short pauses of Python's garbage collector in a broker.

A full collection looks at each object, and the whole process waits. With 4,000 partitions a broker
has half a million objects, and waited for 0.45 s. Almost all of them exist as long as their
partition. So the survivors of a full collection are frozen: later collections do not look at them.

Objects without references are still freed immediately. Only a frozen cycle stays. Therefore all
objects are examined again when there are twice as many as at the last such examination.
"""

from __future__ import annotations

import gc
from typing import Any, Final

_OLDEST: Final = 2
FROZEN_LEAST: Final = 20_000
"""The examination of fewer survivors takes some milliseconds, so they are not frozen."""


def freeze_survivors() -> None:
    """Freeze the survivors of each later full collection in this process."""
    gc.callbacks.append(Survivors().on_collection)


class Survivors:
    """The frozen objects of this process."""

    def __init__(self) -> None:
        self._frozen = 0
        self._examined = 0  # of the frozen objects, those of the last examination of all
        self._examines_all = True

    def on_collection(self, phase: str, info: dict[str, Any]) -> None:
        """Take the interpreter's report of a collection, just before it and just after it."""
        if info["generation"] != _OLDEST:
            return
        if phase == "start":
            self._examines_all = self._frozen >= 2 * self._examined
            if self._examines_all:
                gc.unfreeze()
            return
        if self._examines_all:
            self._frozen = self._examined = 0
        if len(gc.get_objects(generation=_OLDEST)) < FROZEN_LEAST:
            return
        gc.freeze()
        self._frozen = gc.get_freeze_count()
        if self._examines_all:
            self._examined = self._frozen
