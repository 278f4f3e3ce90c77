"""The threads of a pool: few for quick work, and more while some work blocks."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator

import pytest

from spark_stream.broker.serving import pool as pool_module
from spark_stream.broker.serving.pool import DeferredWork, Pool
from spark_stream.transport.loop import Loop
from tests.support import eventually


@pytest.fixture
def loop() -> Iterator[Loop]:
    loop = Loop("test-pool")
    yield loop
    loop.close()


def test_long_queue_of_quick_work_starts_no_more_threads(
    loop: Loop, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pool_module, "PATIENCE_S", 0.4)
    pool, done = Pool(loop, usual=2), threading.Event()
    for _ in range(200):
        pool.submit(lambda: time.sleep(0.01))
    pool.submit(done.set)
    most = 0
    while not done.wait(0.05):
        most = max(most, pool.threads)
    assert most == 2
    pool.stop()


def test_work_continues_while_some_threads_block(loop: Loop) -> None:
    pool, free, done = Pool(loop, usual=2), threading.Event(), threading.Event()
    for _ in range(10):
        pool.submit(lambda: free.wait(30) and None)
    pool.submit(done.set)
    assert done.wait(30)
    assert pool.threads == 11
    free.set()
    pool.stop()
    assert not pool.submit(done.set)
    eventually(lambda: pool.threads == 0)


def test_work_is_queued_while_no_thread_can_be_started(
    loop: Loop, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fails(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    pool, done = Pool(loop), threading.Event()
    with monkeypatch.context() as full:
        full.setattr(threading.Thread, "start", fails)
        assert pool.submit(done.set)
        assert pool.submit(lambda: None)
        assert pool.threads == 0
    assert done.wait(30)
    message = "thread start failed; the broker's work is queued: can't start new thread"
    assert caplog.messages.count(message) == 1
    pool.stop()


def test_submit_after_runs_work_at_the_end_of_the_context_or_on_the_pool(
    loop: Loop,
) -> None:
    pool, done, threads = Pool(loop, usual=1), threading.Event(), []

    def work() -> None:
        threads.append(threading.current_thread())
        done.set()

    def fails() -> None:
        raise RuntimeError("the work after it is done all the same")

    with DeferredWork():
        assert pool.submit_after(fails)
        assert pool.submit_after(work)
        assert threads == []
    assert threads == [threading.current_thread()]
    done.clear()
    assert pool.submit_after(work)
    assert done.wait(30)
    assert threads[1] is not threading.current_thread()
    pool.stop()
    eventually(lambda: pool.threads == 0)
    assert not pool.submit_after(work)


def test_a_thread_defers_a_limited_amount_of_work(loop: Loop) -> None:
    """The lock of a partition may wake hundreds of readers on the thread that appends."""
    pool, threads, done = Pool(loop, usual=1), list[threading.Thread](), threading.Event()

    def work(number: int) -> None:
        threads.append(threading.current_thread())
        if len(threads) == 500:
            done.set()

    with DeferredWork():
        for number in range(500):
            assert pool.submit_after(work, number)
    assert done.wait(30)
    assert threads.count(threading.current_thread()) == pool_module._DEFERRED_MAX
    pool.stop()


def test_pool_with_a_long_queue_gives_way_to_another_one(
    loop: Loop, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pool_module, "_GIVE_WAY_S", 60)
    monkeypatch.setattr(pool_module, "PATIENCE_S", 60)
    prior, may_end, done = Pool(loop), threading.Event(), threading.Event()
    pool, begun = Pool(loop, usual=1, prior=prior), []
    prior.submit(lambda: may_end.wait(30) and None)

    def work() -> None:
        begun.append(may_end.is_set())

    first = threading.Event()
    pool.submit(lambda: first.wait(30) and None)  # until the queue is long
    for _ in range(10):
        pool.submit(work)
    pool.submit(done.set)
    first.set()
    assert not done.wait(0.2)
    assert begun == []
    may_end.set()
    assert done.wait(30)
    assert begun == [True] * 10
    pool.stop()
    prior.stop()


def test_pool_gives_way_for_a_short_time_only(loop: Loop) -> None:
    prior, may_end, done = Pool(loop), threading.Event(), threading.Event()
    pool = Pool(loop, usual=1, prior=prior)
    prior.submit(lambda: may_end.wait(60) and None)
    for _ in range(10):
        pool.submit(lambda: None)
    pool.submit(done.set)
    assert done.wait(30)
    assert not may_end.is_set()
    may_end.set()
    pool.stop()
    prior.stop()
