"""The lifetime of the process that made a client: forks, and objects that stay in the process.

A client belongs to the process that made it, its :class:`Lifetime`. A forked child has a copy of
each client and none of the threads. So the child first unlocks its copies of locks, which a thread
of the parent may have held. Then modules drop the parent's threads and connections, and objects
drop the parent's calls. Each later use of such a copy raises :class:`ForkedClient`.
"""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Callable
from typing import NoReturn, SupportsIndex, TypeAlias

from spark_stream.errors import ForkedClient, NotPicklable

Lock: TypeAlias = threading.RLock

_locks: weakref.WeakSet[Lock] = weakref.WeakSet()
_modules: list[Callable[[], None]] = []
_methods: set[weakref.WeakMethod[Callable[[], None]]] = set()


class Lifetime:
    """The lifetime of one process, which all its clients share."""

    def __init__(self) -> None:
        self.pid = os.getpid()
        self.is_over = False
        """Whether its clients must leave their connections alone."""

    def check(self) -> None:
        """Raise the error of :meth:`refusal` if the lifetime has ended."""
        if self.is_over:
            raise self.refusal()

    def refusal(self) -> ForkedClient:
        """Return the error for each use of a client after the end of its lifetime."""
        return ForkedClient(
            f"this client belongs to process {self.pid}, and process {os.getpid()} was forked",
            pid=self.pid,
        )


_present = Lifetime()


def present_lifetime() -> Lifetime:
    """Return the lifetime of the running process."""
    return _present


class ProcessBound:
    """An object with threads or connections of its process: it cannot be pickled or copied."""

    def __reduce_ex__(self, protocol: SupportsIndex, /) -> NoReturn:
        """Raise NotPicklable, for ``pickle``, ``copy.copy`` and ``copy.deepcopy``."""
        raise NotPicklable(f"a {type(self).__name__} cannot be pickled or copied")


def new_lock() -> Lock:
    """Return a reentrant lock whose copy in a forked child is always unlocked."""
    lock = threading.RLock()
    _locks.add(lock)
    return lock


def in_child(act: Callable[[], None]) -> Callable[[], None]:
    """Have a module's function called in each forked child, in the order of these calls."""
    _modules.append(act)
    return act


def in_child_while_used(act: Callable[[], None]) -> None:
    """Have an object's method called in each forked child, after all functions of modules."""
    _methods.add(weakref.WeakMethod(act, _methods.discard))


def _leave_parent() -> None:
    global _present
    _present.is_over = True
    _present = Lifetime()
    for lock in list(_locks):
        lock._at_fork_reinit()  # type: ignore[attr-defined]  # as logging and threading do
    for act in _modules:
        act()
    for each in list(_methods):
        if (method := each()) is not None:
            method()


os.register_at_fork(after_in_child=_leave_parent)
