"""Whether the log of one replica takes writes, as its last writes showed.

Every write to the log is made ``with`` the replica's :class:`Fitness`, under the partition's lock.
The rules are in ``consistency.control.withdrawal``; ``handover`` acts on them.
"""

from __future__ import annotations

from collections.abc import Callable
from types import TracebackType
from typing import Final

from spark_stream.consistency.control.withdrawal import (
    Trouble,
    after_attempt,
    after_refusal,
    after_write,
)
from spark_stream.environment import Clock
from spark_stream.errors import DiskFull, IsologError, StorageFailure

_REFUSALS: Final = (DiskFull, StorageFailure)


class Fitness:
    """What is known of one log. Any thread may look at ``trouble``."""

    __slots__ = ("_clock", "_on_trouble", "error", "trouble")

    def __init__(self, clock: Clock, on_trouble: Callable[[], None]) -> None:
        """``on_trouble`` is called when the log refuses a write."""
        self._clock = clock
        self._on_trouble = on_trouble
        self.trouble: Trouble | None = None
        self.error: IsologError | None = None
        """The error of the last refused write."""

    def __enter__(self) -> None:
        pass

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if error is None:
            if self.trouble is not None:
                self.trouble = after_write(self.trouble)
        elif isinstance(error, _REFUSALS):
            self.note(error)

    def note(self, error: IsologError) -> None:
        """Note that the log has refused a write."""
        full, now = isinstance(error, DiskFull), self._clock.steady_us()
        self.error = error
        self.trouble = after_refusal(self.trouble, now, full=full)
        self._on_trouble()

    def check(self) -> None:
        """Raise the last write's error if the log is in trouble."""
        if self.trouble is not None and self.error is not None:
            raise self.error.again()

    def put_off(self) -> None:
        """Look at the trouble again later, if there still is one."""
        if self.trouble is not None:
            self.trouble = after_attempt(self.trouble, self._clock.steady_us())

    def end(self) -> None:
        """Forget the trouble: the log has taken a probe."""
        self.trouble = self.error = None
