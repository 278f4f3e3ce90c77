"""Programs that end while their threads wait for a broker, or call one."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.support import BrokerProcess

pytestmark = pytest.mark.timeout(120)


LEFT_OPEN = """
import sys, threading
import isolog
log = isolog.connect(sys.argv[1])
producer = log.producer()
producer.send("t", "v").result(20)
following = log.consumer("t").records()
next(following)
for isolation in ("read_uncommitted", "read_atomic"):
    polling = log.consumer("quiet", isolation=isolation).records()
    threading.Thread(target=list, args=(polling,), daemon=True).start()
producer.send("t", "w")
"""


def test_a_program_ends_with_open_clients(broker: BrokerProcess) -> None:
    """Its clients are open, and its threads wait for the broker at the shutdown."""
    with broker.connect() as log:
        log.create_topic("t")
        log.create_topic("quiet", partitions=4)
    programs = [
        subprocess.Popen(
            [sys.executable, "-X", "faulthandler", "-c", LEFT_OPEN, broker.address],
            stderr=subprocess.PIPE,
            text=True,
        )
        for _ in range(3)
    ]
    for each in programs:
        _, said = each.communicate(timeout=60)
        assert (each.returncode, said) == (0, "")


ENDS_SLOWLY = (
    LEFT_OPEN
    + """
import ctypes
libc = ctypes.CDLL(None)
libc.on_exit(libc.sleep, None)  # when the interpreter is gone: for as long as the exit code says
print("ending", flush=True)
sys.exit(3)
"""
)


@pytest.mark.full  # test_log_exit.py has programs without a broker
@pytest.mark.slow
def test_a_program_ends_while_its_broker_dies(tmp_path: Path) -> None:
    """Its threads would get an error after the shutdown of the interpreter."""
    with BrokerProcess(tmp_path) as broker:
        with broker.connect() as log:
            log.create_topic("t")
            log.create_topic("quiet", partitions=4)
        program = subprocess.Popen(
            [sys.executable, "-X", "faulthandler", "-c", ENDS_SLOWLY, broker.address],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        assert program.stdout is not None
        assert program.stdout.readline() == "ending\n"
        time.sleep(1)  # it is probably in that sleep now, and otherwise the test is weaker
        broker.kill()
        _, said = program.communicate(timeout=60)
    assert (program.returncode, said) == (3, "")
