"""The threads for calls to brokers."""

from __future__ import annotations

import threading

import pytest

from spark_stream.client.connecting.threads import CallPool
from tests.support import eventually


def threads(name: str) -> int:
    return sum(each.name == name for each in threading.enumerate())


def test_calls_use_up_to_the_limit_of_threads_and_one_thread_remains():
    pool, name = CallPool(2, "test-calls-limit"), "test-calls-limit"
    over, began = threading.Event(), threading.Semaphore(0)
    done = []
    for number in range(4):
        pool.add(number, lambda n=number: (began.release(), over.wait(30), done.append(n)))
    for _ in range(2):
        assert began.acquire(timeout=20)
    assert threads(name) == 2
    over.set()
    pool.await_idle(20)
    assert sorted(done) == [0, 1, 2, 3]
    eventually(lambda: threads(name) == 1)
    pool.add("again", lambda: done.append("again"))
    pool.await_idle(20)
    assert done[-1] == "again"
    assert threads(name) == 1


def test_two_calls_for_an_idle_thread_do_not_wait_for_each_other():
    pool, meet = CallPool(2, "test-calls-meet"), threading.Barrier(2)
    pool.keep_thread()
    pool.await_idle(20)
    met = []
    for key in range(2):
        pool.add(key, lambda: met.append(meet.wait(20)))
    pool.await_idle(20)
    assert sorted(met) == [0, 1]


def test_the_thread_of_a_call_that_forked_makes_other_calls_in_the_child():
    pool, done = CallPool(2, "test-calls-fork"), threading.Event()
    pool.add("fork", pool._begin)  # as in the child, which drops the parent's calls
    pool.await_idle(20)
    pool.add("fork", done.set)
    assert done.wait(20)


def test_a_call_is_refused_without_a_thread(monkeypatch):
    def start(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    pool, called = CallPool(2, "test-calls-none"), threading.Event()
    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", start)
        with pytest.raises(RuntimeError):
            pool.add("a", called.set)
    pool.add("b", lambda: None)
    pool.await_idle(20)
    assert not called.is_set()


def test_call_may_be_added_while_a_thread_looks_for_one():
    """A garbage collection may do this on the thread that already holds the lock."""
    pool, done = CallPool(1, "calls-of-a-test"), threading.Event()

    class Collected:
        adds = False

        def __hash__(self) -> int:
            if self.adds:
                self.adds = False
                pool.add("of a finalizer", done.set)
            return 0

    busy = Collected()
    with pool._changed:
        pool._busy.add(busy)
        busy.adds = True
        pool._waiting.append((busy, int, ()))
    pool.add("first", int)
    assert done.wait(10)
