"""Locks that a forked child can take.

A fork copies a lock as it is. If another thread of the parent held it at that moment, nobody in the
child would ever release it. What a child may go on using, such as a client, makes its locks here.
"""

from __future__ import annotations

import os
import threading
import weakref

_locks: weakref.WeakSet[threading.Lock] = weakref.WeakSet()


def new_lock() -> threading.Lock:
    """Return a lock that is free in a child, whoever held it in the parent."""
    lock = threading.Lock()
    _locks.add(lock)
    return lock


def _free_all() -> None:
    for lock in list(_locks):
        lock._at_fork_reinit()  # type: ignore[attr-defined]  # as logging and threading do


os.register_at_fork(after_in_child=_free_all)
