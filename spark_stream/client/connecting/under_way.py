"""The end of a program whose threads are still inside Flight.

A thread that comes back from C++ with an error when the interpreter is gone asks pyarrow for it,
and the process ends by a signal instead of its exit code. That needs a broker that ends a call just
then. So before the interpreter goes, and when only daemon threads are left, all connections to
brokers are ended, and the threads that come back end too, without a word.
"""

from __future__ import annotations

import atexit
import os
import threading
import time
from types import TracebackType
from typing import Final

from spark_stream.errors import InvalidRequest
from spark_stream.wire.sockets import end_connections

_PATIENCE_S: Final = 2.0
_PAUSE_S: Final = 0.005


class CallsUnderWay:
    """The calls of one process that are inside Flight: each is a context, and none within another.

    Raises:
        InvalidRequest: the program ends, and its main thread calls. (Other threads end.)
    """

    def __init__(self) -> None:
        self._threads: set[int] = set()
        self._addresses: set[str] = set()
        self._process = os.getpid()
        self._over = False

    def __enter__(self) -> None:
        self._threads.add(threading.get_ident())
        if self._over:
            self._leave()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._threads.discard(threading.get_ident())
        if self._over:
            self._leave()

    def note(self, address: str) -> None:
        """Calls go there from now on. (A forked child shares its parent's connections.)"""
        if self._process != os.getpid():
            self._process = os.getpid()
            self._threads, self._addresses = set(), set()
        self._addresses.add(address)

    def end(self) -> None:
        """Ends all calls, and waits for their threads; to be called once, by the main thread."""
        if self._process != os.getpid():
            return
        self._over = True
        deadline = time.monotonic() + _PATIENCE_S
        while self._threads and time.monotonic() < deadline:
            for address in tuple(self._addresses):
                end_connections(address)
            time.sleep(_PAUSE_S)

    def _leave(self) -> None:
        self._threads.discard(threading.get_ident())
        if threading.current_thread() is not threading.main_thread():
            raise SystemExit
        raise InvalidRequest("the program ends", hint="Close the log before the program ends.")


UNDER_WAY: Final = CallsUnderWay()
atexit.register(UNDER_WAY.end)
