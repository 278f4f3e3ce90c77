"""Signal handlers that wait until the main thread has finished a change.

Python runs a signal handler between any two instructions of the main thread, whichever thread got
the signal. Its exception, such as ``KeyboardInterrupt``, would leave an event half handled. A
signal mask does not help, because the mask of one thread holds for that thread only.

So the handlers of Python are replaced for the time of :class:`DeferredSignals`. The replacement
records a signal, and its handler runs at the end, or in :meth:`DeferredSignals.open`. This uses
``_signal``, because the functions of ``signal`` convert to enums, which takes ten times as long.
"""

from __future__ import annotations

import _signal  # type: ignore[import-not-found]
import signal
from collections.abc import Callable
from types import FrameType
from typing import Final

from spark_stream.transport.lifetime import is_main_thread

_NUMBERS: Final = sorted(map(int, signal.valid_signals()))
_Handler = Callable[[int, FrameType | None], object]


class DeferredSignals:
    """A block of the main thread without handlers of signals. On other threads without effect.

    A handler that the program sets in the meantime stays.
    """

    __slots__ = ("_arrived", "_defers", "_handlers")

    def __init__(self) -> None:
        self._handlers: dict[int, _Handler] = {}  # the replaced ones
        self._arrived: list[tuple[int, FrameType | None]] = []
        self._defers = False

    def __enter__(self) -> DeferredSignals:
        if is_main_thread():
            self._defers = True
            try:
                for number in _NUMBERS:
                    handler = _signal.getsignal(number)
                    if callable(handler):
                        self._handlers[number] = handler
                        _signal.signal(number, self._handle)
            except BaseException:  # of a handler that is not replaced yet
                self.__exit__()
                raise
        return self

    def __exit__(self, *_: object) -> None:
        try:
            self._restore()
        finally:
            self._run()

    def open(self) -> None:
        """Run the handlers of signals that have arrived, and of each signal until :meth:`shut`."""
        if self._handlers:
            self._defers = False
            self._run()

    def shut(self) -> None:
        """Defer signals again."""
        self._defers = bool(self._handlers)

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if self._defers:
            self._arrived.append((number, frame))
        else:
            self._handlers[number](number, frame)

    def _run(self) -> None:
        """Run the handlers of all signals that have arrived, also after an exception of one."""
        try:
            while self._arrived:
                number, frame = self._arrived.pop(0)
                self._handlers[number](number, frame)
        finally:
            if self._arrived:
                self._run()

    def _restore(self) -> None:
        """Restore the handlers, even if one of them raises an exception during this."""
        raised: BaseException | None = None
        is_done = False
        try:
            while not is_done:
                try:
                    for number, handler in self._handlers.items():
                        if _signal.getsignal(number) == self._handle:
                            _signal.signal(number, handler)
                    is_done = True
                except BaseException as error:
                    raised = error
        finally:
            self._defers = False
        if raised is not None:
            raise raised
