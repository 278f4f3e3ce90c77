"""What a forked child does before it goes on.

A child gets a copy of each object of its parent, but none of the parent's threads. So it frees its
copies of locks, which a thread of the parent may have held; then modules drop what the parent's
threads work on, such as connections; then objects begin anew.
"""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Callable

_locks: weakref.WeakSet[threading.Lock] = weakref.WeakSet()
_modules: list[Callable[[], None]] = []
_methods: set[weakref.WeakMethod[Callable[[], None]]] = set()


def new_lock() -> threading.Lock:
    """Return a lock whose copy in a forked child is always unlocked."""
    lock = threading.Lock()
    _locks.add(lock)
    return lock


def in_child(act: Callable[[], None]) -> Callable[[], None]:
    """Have a module's function called in each forked child; in the order of these calls."""
    _modules.append(act)
    return act


def in_child_while_used(act: Callable[[], None]) -> None:
    """Have an object's method called in each forked child, after all functions of modules."""
    _methods.add(weakref.WeakMethod(act, _methods.discard))


def _leave_parent() -> None:
    for lock in list(_locks):
        lock._at_fork_reinit()  # type: ignore[attr-defined]  # as logging and threading do
    for act in _modules:
        act()
    for each in list(_methods):
        if (method := each()) is not None:
            method()


os.register_at_fork(after_in_child=_leave_parent)
