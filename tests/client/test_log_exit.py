"""Programs that use clients while the interpreter ends."""

from __future__ import annotations

import subprocess
import sys
import time

import pytest

from tests.support import BrokerProcess

FULL = pytest.mark.full  # the other programs have the same property
pytestmark = pytest.mark.timeout(180)

BEGIN = """
import atexit, sys, threading, time
from concurrent.futures import ThreadPoolExecutor

address = sys.argv[1]

def report(name, call):
    began = time.monotonic()
    try:
        call()
        outcome = "works"
    except Exception as error:
        outcome = type(error).__name__
    took = time.monotonic() - began
    print(name, outcome if took < 5 else f"{outcome} after {took} s", flush=True)

def report_all():
    report("send", lambda: producer.send("t", "late"))
    report("flush", producer.flush)
    report("commit", loader.commit_transaction)
    report("read", lambda: log.read("t"))
    report("poll", consumer.poll)
    report("connect", lambda: isolog.connect(address))
    report("close", lambda: [each.close() for each in (producer, loader, consumer, log)])
"""
OPEN = """
import isolog
log = isolog.connect(address)
producer = log.producer(linger_ms=60_000)
loader = log.producer(transactional_id="loader")
consumer = log.consumer("t", name="n")
loader.begin_transaction()
loader.send("t", "in transaction")
for number in range(10):
    producer.send("t", str(number))
"""
WORKS = {"send works", "flush works", "commit works", "read works", "poll works", "connect works"}
REFUSED = {each.replace("works", "InterpreterEnding") for each in WORKS}
CLOSES = {"close works"}

OTHERS = {b"late", b"in transaction"}

HANDLER = "atexit.register(report_all)\n"
FINALIZER = """
class Holder:
    def __del__(self, report_all=report_all):
        report_all()
"""
HOLD = "holder = Holder()\nholder.cycle = sys.modules['kept'] = holder\n"
THREADS = """
over = threading.Event()
def use():
    time.sleep(0.3)  # the main thread has ended
    report_all()
"""
IN_A_THREAD = "threading.Thread(target=use).start()\n"
IN_A_POOL = "ThreadPoolExecutor(1).submit(use)\n"
IN_A_DAEMON = """
def go_on():
    while True:
        try:
            producer.send("t", "more")
        except isolog.errors.IsologError:
            return
threading.Thread(target=go_on, daemon=True).start()
"""


@pytest.mark.quick("a later handler", "a daemon thread")
@pytest.mark.parametrize(
    ("program", "printed", "others"),
    [
        pytest.param(BEGIN + OPEN, set(), set(), id="unflushed records", marks=FULL),
        pytest.param(BEGIN + OPEN + HANDLER, WORKS | CLOSES, OTHERS, id="a later handler"),
        pytest.param(
            BEGIN + HANDLER + OPEN, REFUSED | CLOSES, set(), id="an earlier handler", marks=FULL
        ),
        pytest.param(BEGIN + FINALIZER + OPEN + HOLD, REFUSED | CLOSES, set(), id="a finalizer"),
        pytest.param(BEGIN + THREADS + OPEN + IN_A_THREAD, WORKS | CLOSES, OTHERS, id="a thread"),
        pytest.param(
            BEGIN + THREADS + OPEN + IN_A_POOL, WORKS | CLOSES, OTHERS, id="a pool", marks=FULL
        ),
        pytest.param(BEGIN + OPEN + IN_A_DAEMON, set(), set(), id="a daemon thread"),
    ],
)
def test_a_program_sends_its_records_when_it_ends(broker: BrokerProcess, program, printed, others):
    with broker.connect() as log:
        log.create_topic("t")
        began = time.monotonic()
        found = subprocess.run(
            [sys.executable, "-X", "faulthandler", "-c", program, broker.address],
            capture_output=True,
            text=True,
            timeout=100,
            check=False,
        )
        assert (found.returncode, found.stderr) == (0, "")
        assert set(found.stdout.splitlines()) == printed
        assert time.monotonic() - began < 60
        stored = log.read("t", isolation="read_committed")["value"].to_pylist()
        assert [each for each in stored if each.isdigit()] == [b"%d" % n for n in range(10)]
        assert {each for each in stored if not each.isdigit()} - {b"more"} == others


IN_A_WORKER = """
import multiprocessing, sys
import isolog

def work():
    producer = isolog.connect(sys.argv[1]).producer(linger_ms=60_000)
    for number in range(10):
        producer.send("t", str(number))

if __name__ == "__main__":
    isolog.connect(sys.argv[1])
    process = multiprocessing.get_context("fork").Process(target=work)
    process.start()
    process.join()
"""

DEAD_BROKER = """
import atexit, sys, time
import isolog
from spark_stream.testing.local_cluster import pause_process
from spark_stream.transport import lifetime
lifetime.EXIT_S = 1.0
log = isolog.connect(sys.argv[1])
producer = log.producer()
producer.send("t", "1").result(20)
loader = log.producer(transactional_id="loader")
loader.begin_transaction()
consumer = log.consumer("t", name="n")
pause_process(int(sys.argv[2]))
producer.send("t", "2")
if sys.argv[3] == "handlers":
    for each in (log, consumer, loader, producer):
        atexit.register(each.close)
print(time.time(), flush=True)
"""


def test_a_worker_of_multiprocessing_sends_its_records_when_it_ends(broker: BrokerProcess):
    """It ends with ``os._exit()``, without exit handlers."""
    with broker.connect() as log:
        log.create_topic("t")
        found = subprocess.run(
            [sys.executable, "-c", IN_A_WORKER, broker.address],
            capture_output=True,
            text=True,
            timeout=100,
            check=False,
        )
        assert (found.returncode, found.stderr) == (0, "")
        assert log.read("t")["value"].to_pylist() == [b"%d" % n for n in range(10)]


@pytest.mark.quick("no handlers")
@pytest.mark.parametrize("closing", ["no handlers", "handlers"])
def test_a_program_ends_within_its_limit_if_no_broker_answers(broker: BrokerProcess, closing: str):
    """Also if its exit handlers close the clients. The limit of the test is one second."""
    with broker.connect() as log:
        log.create_topic("t")
    found = subprocess.run(
        [sys.executable, "-c", DEAD_BROKER, broker.address, str(broker.pid), closing],
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    took = time.time() - float(found.stdout)
    broker.resume()
    assert found.returncode == 0
    assert "program ended without close(); a write failed" in found.stderr
    assert took < 1 + 8
