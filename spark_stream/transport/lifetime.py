"""The lifetime of the process that made a client: forks, the end, and what stays in the process.

A client belongs to the process that made it, its :class:`Lifetime`. A forked child has a copy of
each client and none of the threads. So the child first unlocks its copies of locks, which a thread
of the parent may have held. Then modules drop the parent's threads and connections, and objects
drop the parent's calls. Each later use of such a copy raises :class:`ForkedClient`.

The end of the interpreter ends the lifetime too. All threads have ended by then, except daemons.
First the program's exit handlers run. Then the clients send their records and end their
transactions and sessions. All of this has ``EXIT_S`` seconds. After that each use raises
:class:`InterpreterEnding`. A wait would never end, because the interpreter stops the daemon
threads.

A signal handler runs between any two instructions of the main thread, and a finalizer between those
of any thread. If the interrupted call holds one of the brief locks, other threads wait for it. So a
call that would wait for them, or enter the same section again, raises :class:`ReentrantCall`. No
thread waits for a broker while it holds a brief lock.
"""

from __future__ import annotations

import atexit
import math
import os
import sys
import threading
import time
import weakref
from collections.abc import Callable
from contextlib import suppress
from typing import Final, NoReturn, Protocol, SupportsIndex, TypeAlias

from spark_stream.errors import (
    ForkedClient,
    InterpreterEnding,
    IsologError,
    NotPicklable,
    ReentrantCall,
)
from spark_stream.loggers import logger_of
from spark_stream.operating_system import call_in_child

logger = logger_of(__name__)

EXIT_S: Final = 10.0
"""The longest delay of a process's end by its clients."""

Lock: TypeAlias = threading.RLock


class Section(Protocol):
    """A section of code that a thread leaves soon: a brief lock, or an object with such code."""

    def _is_owned(self) -> bool:
        """Return whether the calling thread is inside. ``threading`` has the name for its locks."""


_locks: set[weakref.ref[Lock]] = set()
_brief: set[weakref.ref[Section]] = set()
_modules: list[Callable[[], None]] = []
_methods: set[weakref.WeakMethod[Callable[[], None]]] = set()
_endings: dict[weakref.WeakMethod[Callable[[], None]], None] = {}


class Lifetime:
    """The lifetime of one process, which all its clients share."""

    def __init__(self) -> None:
        self.pid = os.getpid()
        self.is_parents = False
        """Whether this process was forked, so that the connections belong to its parent."""
        self.is_over = False
        """Whether its clients must not be used any more."""
        self._deadline = math.inf
        self._has_end = False

    def check(self) -> None:
        """Raise the error of :meth:`refusal` if the lifetime has ended."""
        if self.is_over:
            raise self.refusal()

    def bounded(self, deadline: float) -> float:
        """Return the earlier one of a deadline and the limit for the end of the interpreter."""
        return min(deadline, self._deadline)

    def seconds_left(self, timeout_s: float | None = None) -> float | None:
        """Return a timeout that keeps the limit for the end of the interpreter."""
        if self._deadline == math.inf:
            return timeout_s
        left = max(0.0, self._deadline - time.monotonic())
        return left if timeout_s is None else min(left, timeout_s)

    def begin(self) -> None:
        """Register :func:`end_lifetime` in a worker of ``multiprocessing``.

        Such a worker skips exit handlers. Every other interpreter calls it as an exit handler.
        """
        if self._has_end:
            return
        self._has_end = True
        processes = sys.modules.get("multiprocessing.process")
        if processes is not None and processes.parent_process() is not None:
            from multiprocessing.util import Finalize  # only in such a worker

            Finalize(None, end_lifetime, exitpriority=0)

    def limit_end(self) -> None:
        """Start the limit for the end of the interpreter, if it has not started."""
        if self._deadline == math.inf:
            self._deadline = time.monotonic() + EXIT_S

    def end(self) -> None:
        """End the clients of this process, at the end of its interpreter."""
        if self.is_over:
            return
        self.limit_end()
        for each in reversed(list(_endings)):
            if (act := each()) is not None:
                try:
                    act()
                except Exception:
                    logger.exception("a client could not be closed at the end of the program")
        self.is_over = True

    def refusal(self) -> IsologError:
        """Return the error for each use of a client after the end of its lifetime."""
        if not self.is_parents:
            return InterpreterEnding("the program has ended, and its clients with it")
        return ForkedClient(
            f"this client belongs to process {self.pid}, and process {os.getpid()} was forked",
            pid=self.pid,
        )


_present = Lifetime()


@atexit.register
def end_lifetime() -> None:
    """End the lifetime of the running process."""
    _present.end()


def _limit_exit_handlers() -> None:
    """Start the limit with the first exit handler, because the latest one runs first.

    ``threading`` calls this when the main thread has ended, before it waits for other threads.
    """
    atexit.register(_limit_end)


def _limit_end() -> None:
    _present.limit_end()  # that of the process, which may have been forked since


with suppress(RuntimeError):  # the first import of this module is in an exit handler
    threading._register_atexit(_limit_exit_handlers)  # type: ignore[attr-defined]


def at_end_while_used(act: Callable[[], None]) -> None:
    """Have an object's method called at the end of the interpreter, the latest object first."""
    _endings[weakref.WeakMethod(act, _drop_ending)] = None


def _drop_ending(ended: weakref.WeakMethod[Callable[[], None]]) -> None:
    _endings.pop(ended, None)


def present_lifetime() -> Lifetime:
    """Return the lifetime of the running process."""
    return _present


class ProcessBound:
    """An object with threads or connections of its process: it cannot be pickled or copied."""

    def __reduce_ex__(self, protocol: SupportsIndex, /) -> NoReturn:
        """Raise NotPicklable, for ``pickle``, ``copy.copy`` and ``copy.deepcopy``."""
        raise NotPicklable(f"a {type(self).__name__} cannot be pickled or copied")


def is_main_thread() -> bool:
    """Return whether signal handlers run on the calling thread."""
    return threading.current_thread() is threading.main_thread()


def new_lock(*, is_brief: bool = True) -> Lock:
    """Return a reentrant lock whose copy in a forked child is always unlocked.

    ``is_brief``: no thread waits for a broker while it holds the lock.
    """
    lock = threading.RLock()
    if is_brief:
        watch_section(lock)  # type: ignore[arg-type]  # it has the method
    _locks.add(weakref.ref(lock, _locks.discard))
    return lock


def watch_section(section: Section) -> None:
    """Have :func:`check_may_wait` consider a section."""
    _brief.add(weakref.ref(section, _brief.discard))


def check_not_inside(section: Section | Lock) -> None:
    """Raise ReentrantCall if the calling thread is inside the section."""
    if section._is_owned():  # type: ignore[union-attr]
        raise ReentrantCall("a call of a client was interrupted and has to return first")


def check_may_wait() -> None:
    """Raise ReentrantCall if the calling thread is inside a section: others may wait for it."""
    for each in list(_brief):
        section = each()
        if section is not None and section._is_owned():
            check_not_inside(section)


def holds_lock() -> bool:
    """Return whether the calling thread holds a lock of :func:`new_lock`."""
    locks = (each() for each in list(_locks))
    return any(lock is not None and lock._is_owned() for lock in locks)  # type: ignore[attr-defined]


def in_child(act: Callable[[], None]) -> Callable[[], None]:
    """Have a module's function called in each forked child, in the order of registration."""
    _modules.append(act)
    return act


def in_child_while_used(act: Callable[[], None]) -> None:
    """Have an object's method called in each forked child, after all functions of modules."""
    _methods.add(weakref.WeakMethod(act, _methods.discard))


def _leave_parent() -> None:
    global _present
    _present.is_parents = _present.is_over = True
    _endings.clear()
    _present = Lifetime()
    for reference in list(_locks):
        if (lock := reference()) is not None:
            lock._at_fork_reinit()  # type: ignore[attr-defined]  # as logging and threading do
    for act in _modules:
        act()
    for each in list(_methods):
        if (method := each()) is not None:
            method()


call_in_child(_leave_parent)
