"""The locks of a process, as many threads make and check them."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator

import pytest

from spark_stream.transport.lifetime import check_may_wait, holds_lock, new_lock


@pytest.fixture(autouse=True)
def often_switching() -> Iterator[None]:
    """Make threads switch as often as Python can."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


def test_locks_can_be_checked_while_other_threads_make_locks():
    kept = [new_lock() for _ in range(200)]
    over = threading.Event()

    def make() -> None:
        while not over.is_set():
            [new_lock() for _ in range(50)]

    makers = [threading.Thread(target=make) for _ in range(2)]
    for each in makers:
        each.start()
    try:
        for _ in range(2_000):
            assert not holds_lock()
            check_may_wait()
    finally:
        over.set()
        for each in makers:
            each.join()
    with kept[0]:
        assert holds_lock()
