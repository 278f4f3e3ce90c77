"""Where the streams of replication do what takes time, and what calls them when it is time."""

from __future__ import annotations

from collections.abc import Callable

from msgspec import Struct

Work = Callable[[], None]


class Background(Struct, frozen=True):
    """``submit`` does work on another thread, and returns False once it does no more.

    ``submit_after`` does the same; a thread that has just appended may do short work itself.
    ``call_later`` calls something after so many seconds, on the loop's thread; it must not block.
    """

    submit: Callable[[Work], bool]
    submit_after: Callable[[Work], bool]
    call_later: Callable[[float, Work], object]
