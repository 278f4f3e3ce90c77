"""Other threads for the slow work of replication streams, and timers for their calls."""

from __future__ import annotations

from collections.abc import Callable

from msgspec import Struct

Work = Callable[[], None]


class Background(Struct, frozen=True):
    """``submit`` does work on another thread, and returns False once it has stopped.

    ``submit_after`` does the same; a thread that has just appended may do short work itself.
    ``call_later`` calls something after so many seconds, on the loop's thread; it must not block.
    """

    submit: Callable[[Work], bool]
    submit_after: Callable[[Work], bool]
    call_later: Callable[[float, Work], object]
