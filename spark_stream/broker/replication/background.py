"""Other threads for the slow work of replication streams, and timers for their calls."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol, TypeVarTuple

from msgspec import Struct

Ts = TypeVarTuple("Ts")
Work = Callable[[], None]


class Submit(Protocol):
    """Calls a function on another thread. Returns False once the threads have stopped."""

    def __call__(self, function: Callable[[*Ts], None], /, *args: *Ts) -> bool: ...


class Background(Struct, frozen=True):
    """Other threads, and the loop's timers.

    After ``submit_after`` a thread that has appended may do short work itself. ``call_later`` calls
    a function after so many seconds, on the loop's thread. The function must not block.
    """

    submit: Submit
    submit_after: Submit
    call_later: Callable[[float, Work], object]
