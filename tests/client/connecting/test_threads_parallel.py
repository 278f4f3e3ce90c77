"""Calls to brokers in parallel."""

from __future__ import annotations

import concurrent.futures.thread
import os
import signal
import threading
import time

import pytest

from isolog.errors import ForkedClient, ReentrantCall
from spark_stream.client.connecting.threads import in_parallel
from spark_stream.transport.lifetime import new_lock


def test_calls_run_in_parallel_up_to_the_limit_and_the_results_are_in_order():
    meet, running, most = threading.Barrier(3), set(), []

    def call(number: int) -> int:
        running.add(number)
        most.append(len(running))
        meet.wait(20)
        running.discard(number)
        return -number

    assert in_parallel(call, range(6), 3) == [0, -1, -2, -3, -4, -5]
    assert max(most) == 3
    assert in_parallel(call, [], 3) == []


def test_the_error_of_the_earliest_item_is_raised_after_all_calls_have_returned():
    meet, ended = threading.Barrier(3), []

    def call(number: int) -> None:
        meet.wait(20)
        if number == 0:
            time.sleep(0.05)
        ended.append(number)
        raise ValueError(number)

    with pytest.raises(ValueError, match="0"):
        in_parallel(call, range(9), 3)
    assert sorted(ended) == [0, 1, 2]


def test_calls_run_on_the_calling_thread_if_no_thread_can_start(monkeypatch):
    def start(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", start)
    assert in_parallel(lambda _: threading.get_ident(), range(3), 3) == [threading.get_ident()] * 3


@pytest.mark.timeout(20)
@pytest.mark.parametrize(
    "lock",
    [
        pytest.param(concurrent.futures.thread._global_shutdown_lock, id="executor"),
        pytest.param(threading._active_limbo_lock, id="start of a thread"),
        pytest.param(new_lock(is_brief=False), id="connecting"),
    ],
)
def test_calls_return_while_the_calling_thread_holds_a_lock(lock):
    """As in a signal handler that has interrupted a call that holds the lock."""

    def call(number: int) -> int:
        if hasattr(lock, "_is_owned"):
            with lock:  # reentrant
                pass
        return number

    with lock:
        assert in_parallel(call, range(3), 3) == [0, 1, 2]


def test_a_call_that_interrupts_a_brief_section_is_refused():
    lock = new_lock()
    with lock, pytest.raises(ReentrantCall):
        in_parallel(abs, range(3), 3)


@pytest.mark.timeout(30)
def test_a_child_that_a_call_forked_does_not_wait_for_the_parents_threads():
    meet, main, over = threading.Barrier(2), threading.get_ident(), threading.Event()
    children: list[int] = []

    def call(_: int) -> None:
        meet.wait(20)
        if threading.get_ident() != main:
            over.wait(20)
            return
        children.append(os.fork())
        if children[0]:
            over.set()

    code = 1
    try:
        in_parallel(call, range(2), 2)
    except ForkedClient:
        code = 0
    finally:
        if children[0] == 0:
            os._exit(code)
    try:
        found = os.waitpid(children[0], os.WNOHANG)
        until = time.monotonic() + 20
        while found == (0, 0) and time.monotonic() < until:
            time.sleep(0.01)
            found = os.waitpid(children[0], os.WNOHANG)
    finally:
        if found == (0, 0):
            os.kill(children[0], signal.SIGKILL)
            os.waitpid(children[0], 0)
    assert found == (children[0], 0)
