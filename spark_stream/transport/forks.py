"""Locks that are free in a forked child.

A child gets a copy of each lock. If another thread of the parent holds a lock during the fork, the
copy is locked, and the child has no thread that releases it. Objects that a child may go on using,
such as a client, make their locks with :func:`new_lock`.
"""

from __future__ import annotations

import os
import threading
import weakref

_locks: weakref.WeakSet[threading.Lock] = weakref.WeakSet()


def new_lock() -> threading.Lock:
    """Return a lock whose copy in a forked child is always unlocked."""
    lock = threading.Lock()
    _locks.add(lock)
    return lock


def _free_all() -> None:
    for lock in list(_locks):
        lock._at_fork_reinit()  # type: ignore[attr-defined]  # as logging and threading do


os.register_at_fork(after_in_child=_free_all)
