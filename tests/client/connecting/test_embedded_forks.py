"""A client belongs to the process that created it. A forked child cannot use it."""

from __future__ import annotations

import contextlib
import fcntl
import gc
import multiprocessing
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import isolog
from isolog.errors import ForkedClient
from spark_stream.client.connecting import embedded
from spark_stream.transport import lifetime
from tests.examples import examples
from tests.support import BrokerProcess, values

pytestmark = pytest.mark.timeout(180)


def in_a_child(work: Callable[[], object]) -> int:
    """Run a function in a forked child. Return its exit code, 0 if it raised no error."""
    child = os.fork()
    if child == 0:
        code = 1
        try:
            signal.signal(signal.SIGALRM, signal.SIG_DFL)
            signal.alarm(30)  # ends a child that hangs
            work()
            code = 0
        except BaseException:
            sys.excepthook(*sys.exc_info())  # type: ignore[arg-type]
        finally:
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


@contextlib.contextmanager
def refused() -> Iterator[None]:
    """Check that a use in a forked child fails without a wait."""
    began, parent = time.monotonic(), os.getppid()
    with pytest.raises(ForkedClient, match=f"belongs to process {parent}.*a client in the child"):
        yield
    assert time.monotonic() - began < 1


@pytest.mark.rule(
    "a client belongs to the process that created it",
    "transport/lifetime.py",
    "client/connecting/connection.py",
)
def test_a_forked_child_cannot_use_what_its_parent_opened(log, topic):
    """In the parent all of it continues, and the transaction commits."""
    log.create_topic(topic)
    plain, loader = log.producer(), log.producer(transactional_id=topic)
    named, member = log.consumer(topic, name=topic), log.consumer(topic, group=f"{topic}-group")
    plain.append(topic, values(*"123")).result(20)
    records = log.consumer(topic).records()
    assert next(records).value == b"1"
    assert [each.value for each in named.poll(20, 1)] == [b"1"]
    assert [each.value for each in member.poll(20, 1)] == [b"1"]
    loader.begin_transaction()
    unsettled = plain.send(topic, b"4")
    slow = log.producer(linger_ms=60_000)
    lingering = slow.send(topic, b"5")

    def use() -> None:
        for call in (
            log.status,
            log.topics,
            lambda: log.describe("unknown"),
            lambda: log.read(topic),
            log.producer().flush,
            lambda: log.producer(transactional_id="other"),
            lambda: log.consumer(topic),
            lambda: plain.send(topic, b"never"),
            lambda: plain.send("unknown", b"never"),
            lambda: plain.append(topic, values("never")),
            plain.flush,
            lambda: lingering.result(30),
            lambda: lingering.exception(30),
            lambda: loader.send(topic, b"never"),
            loader.begin_transaction,
            loader.commit_transaction,
            loader.abort_transaction,
            lambda: loader.commit_position(named),
            lambda: next(records),
            lambda: next(named.records()),
            lambda: named.poll(30),
            named.commit,
            lambda: named.seek("earliest"),
            lambda: member.poll(30),
            member.commit,
        ):
            with refused():
                call()
        for each in (plain, loader, named, member, log):
            each.close()
        for each in (plain, loader, named, member, log):
            with each:
                pass
        with pytest.raises(ZeroDivisionError), loader:
            raise ZeroDivisionError

    assert in_a_child(use) == 0
    assert unsettled.result(20).offset == 3
    loader.send(topic, b"6")
    loader.commit_transaction()
    assert [next(records).value for _ in range(4)] == [b"2", b"3", b"4", b"6"]
    named.commit()
    member.commit()
    for each in (plain, loader, slow, named, member):
        each.close()
    assert next(records).value == b"5"


ENDS = """
import gc, os, sys
import isolog

log = isolog.connect(sys.argv[1])
loader = log.producer(transactional_id="loader")
named, member = log.consumer("t", name="n"), log.consumer("t", group="g")
named.poll()

class Holder:
    def __del__(self):
        loader.close()
        log.close()

def in_blocks():
    with log, named, member, loader:
        sys.exit(0)

def commit():
    loader.commit_transaction()

def drop():
    global loader, named, member, log
    del loader, named, member, log
    gc.collect()

holder = Holder()
with loader.transaction():
    for number, end in enumerate((str, in_blocks, commit, drop, loader.close, named.close)):
        loader.send("t", "%d" % number)
        child = os.fork()
        if child == 0:
            end()
            sys.exit(0)  # the end of the interpreter, with all that is left
        code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        assert code == (end is commit), (end, code)
named.commit()
member.close()
print(len(log.read("t", isolation="read_committed")))
"""


def test_the_end_of_a_child_leaves_the_parents_transaction_open(broker: BrokerProcess) -> None:
    with broker.connect() as log:
        log.create_topic("t")
    found = subprocess.run(
        [sys.executable, "-X", "faulthandler", "-c", ENDS, broker.address],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert (found.returncode, found.stdout) == (0, "6\n"), found.stderr
    assert found.stderr.count("Error") == found.stderr.count("ForkedClient") == 1  # of the commit


def test_forks_at_any_moment_leave_each_record_once(log, topic):
    """Threads of the parent write and read at the same time, and children end in many ways."""
    log.create_topic(topic, partitions=2)
    chance, over = random.Random(1), threading.Event()
    plain = log.producer()
    loader = log.producer(transactional_id=topic, transaction_timeout_ms=600_000)
    consumer = log.consumer(topic)
    sent = 0

    def write() -> None:
        nonlocal sent
        while not over.is_set():
            plain.send(topic, b"%d" % sent, partition=0)
            sent += 1
            time.sleep(0.001)
            if not sent % 100:
                plain.flush()

    def read() -> None:
        while not over.is_set():
            consumer.poll(0.01)
            log.status()

    ends = [lambda: None, plain.close, loader.close, consumer.close, log.close, gc.collect]
    threads = [threading.Thread(target=each) for each in (write, read)]
    for each in threads:
        each.start()
    loader.begin_transaction()
    count = examples(100)
    for number in range(count):
        loader.send(topic, b"%d" % number, partition=1)
        time.sleep(chance.random() * 0.005)
        end = chance.choice(ends)

        def work(end: Callable[[], object] = end) -> None:
            for use in (log.status, plain.flush, loader.commit_transaction, consumer.poll):
                with refused():
                    use()
            end()

        assert in_a_child(work) == 0
    over.set()
    for each in threads:
        each.join()
    loader.commit_transaction()
    plain.flush()
    table = log.read(topic, isolation="read_committed")
    numbers = [b"%d" % number for number in range(max(sent, count))]
    assert table["value"].to_pylist() == numbers[:sent] + numbers[:count]
    for each in (plain, loader, consumer):
        each.close()


def write_in_worker(address: str, topic: str, value: str) -> None:
    with isolog.connect(address) as own, own.producer() as producer:
        producer.send(topic, value)


def test_workers_that_are_forked_create_their_own_clients(shared, log, topic):
    """As in a server that forks its workers, and in ``multiprocessing``."""
    log.create_topic(topic)
    with log.producer(transactional_id=topic) as producer, producer.transaction():
        producer.send(topic, b"parent")
        for number in range(2):
            work = (shared.address, topic, f"worker {number}")
            assert in_a_child(lambda work=work: write_in_worker(*work)) == 0
        process = multiprocessing.get_context("fork").Process(
            target=write_in_worker, args=(shared.address, topic, "process")
        )
        process.start()
        process.join(60)
        assert process.exitcode == 0
    found = log.read(topic, isolation="read_committed")["value"].to_pylist()
    assert sorted(found) == [b"parent", b"process", b"worker 0", b"worker 1"]


def test_a_child_does_not_wait_for_locks_of_its_parents_threads(shared, log, topic):
    """A lock that another thread holds during a fork would never be released in the child."""
    log.create_topic(topic)
    producer, loader = log.producer(), log.producer(transactional_id=topic)
    consumer = log.consumer(topic)
    held, over = threading.Event(), threading.Event()

    def hold() -> None:
        with contextlib.ExitStack() as stack:
            for reference in list(lifetime._locks):
                if (lock := reference()) is not None:
                    stack.enter_context(lock)
            held.set()
            over.wait(60)

    def use() -> None:
        for call in (lambda: producer.send(topic, b"v"), loader.begin_transaction, consumer.poll):
            with refused():
                call()
        for each in (producer, loader, consumer, log):
            each.close()
        write_in_worker(shared.address, topic, "child")

    holder = threading.Thread(target=hold)
    holder.start()
    assert held.wait(10)
    try:
        code = in_a_child(use)
    finally:
        over.set()
        holder.join()
    assert code == 0
    assert log.read(topic)["value"].to_pylist() == [b"child"]
    for each in (producer, loader, consumer):
        each.close()


def test_a_child_keeps_no_lock_of_a_directory(tmp_path: Path):
    """Another thread may fork it while its parent checks for a running broker."""
    reading, writing = os.pipe()
    with embedded._turn(tmp_path, time.monotonic() + 10):
        child = os.fork()
        if child == 0:
            os.close(writing)
            os.read(reading, 1)  # until the parent closes its end
            os._exit(0)
    with open(tmp_path / "start.lock") as file:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    os.close(writing)
    os.waitpid(child, 0)
    os.close(reading)
