"""The state of a reader: a named query, a named consumer, or a consumer group.

All views use :func:`state_of`, with the reader's session and its lag. Heartbeats renew the session
while the reader's process runs, and a reader that is closed records its end. So a crash is a
session that expired without a recorded end. A slow reader and a reader between two runs look
different.

A heartbeat also has the time since the program last requested records. This time separates a
reader that hangs from a slow one, and from one that requests records and gets none.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Final

STALLED_S: Final = 120.0
"""A reader that has not requested records for so long, and has some to read, is stalled."""

HOLDS_S: Final = 60.0
"""A transaction that holds records back for so long is reported: a micro-batch may take as long."""


class ReaderState(StrEnum):
    """The state of a reader. Only *stalled* and *gone* need an operator."""

    RUNNING = "running"
    CATCHING_UP = "catching_up"
    WAITING_AT_LSO = "waiting_at_lso"
    STALLED = "stalled"
    STOPPED = "stopped"
    EMPTY = "empty"
    GONE = "gone"


class ReaderEnding(StrEnum):
    """How the last run of a reader ended, or the last member of a group left."""

    NONE = ""
    CLEAN = "clean"
    LOST = "lost"


def state_of(
    ending: ReaderEnding, members: int | None, idle_s: float, readable: int, held_back: int
) -> ReaderState:
    """Return the state of a reader.

    ``members``: those of a group, None for a query or a consumer. ``idle_s``: since it last asked
    for records. ``readable`` and ``held_back``: its lag, see ``isolation.lag_of``.
    """
    if members == 0:
        return ReaderState.GONE if ending is ReaderEnding.LOST else ReaderState.EMPTY
    if members is None and ending is not ReaderEnding.NONE:
        return ReaderState.GONE if ending is ReaderEnding.LOST else ReaderState.STOPPED
    if readable > 0:
        return ReaderState.STALLED if idle_s >= STALLED_S else ReaderState.CATCHING_UP
    return ReaderState.WAITING_AT_LSO if held_back > 0 else ReaderState.RUNNING
