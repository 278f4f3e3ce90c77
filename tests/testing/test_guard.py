"""The processes of a test end with it, even after SIGKILL. Each test kills a test process."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from spark_stream.testing import guard
from spark_stream.testing.guard import start_time
from spark_stream.testing.local_etcd import etcd_binary
from tests.support import alive, eventually

pytestmark = pytest.mark.slow  # each test starts brokers

PORTABLE = """
import os
os.environ["ISOLOG_PORTABLE"] = "1"
"""

LOCAL_CLUSTER = """
import sys, time
from isolog.testing import LocalCluster
cluster = LocalCluster(2)
cluster.pause(2)
print(*(each.pid for each in cluster.brokers.values()), flush=True)
time.sleep(600)
"""

LOCAL_ETCD = """
import threading, time
from spark_stream.testing.local_etcd import LocalEtcd
made = []
starter = threading.Thread(target=lambda: made.append(LocalEtcd(1)))
starter.start()
starter.join()  # the members continue after the thread that started them
[etcd] = made
assert etcd.members[0].alive
print(*(each._process.pid for each in etcd.members), flush=True)
time.sleep(600)
"""

BROKER_PROCESS = """
import sys, time
from pathlib import Path
from tests import forks, support
forks.is_quick = lambda: {quick}
broker = support.BrokerProcess(Path(sys.argv[1]) / "log").start()
broker.pause()
print(broker.pid, flush=True)
time.sleep(600)
"""


def pids_of(script: str, folder: Path) -> tuple[subprocess.Popen[str], list[int]]:
    """A test process, and the processes that it has started."""
    process = subprocess.Popen(
        [sys.executable, "-c", script, str(folder)],
        stdout=subprocess.PIPE,
        text=True,
        env=os.environ | {"TMPDIR": str(folder)},
    )
    assert process.stdout is not None
    with process.stdout as output:
        return process, [int(each) for each in output.readline().split()]


@pytest.mark.quick("LocalCluster", "forked BrokerProcess")
@pytest.mark.parametrize(
    "script",
    [
        pytest.param(LOCAL_CLUSTER, id="LocalCluster"),
        pytest.param(PORTABLE + LOCAL_CLUSTER, id="LocalCluster without /proc"),
        pytest.param(
            LOCAL_ETCD,
            id="LocalEtcd",
            marks=[
                pytest.mark.etcd,
                pytest.mark.skipif(etcd_binary() is None, reason="there is no etcd"),
            ],
        ),
        pytest.param(BROKER_PROCESS.format(quick=True), id="forked BrokerProcess"),
        pytest.param(BROKER_PROCESS.format(quick=False), id="BrokerProcess"),
    ],
)
def test_guard_kills_processes_of_a_killed_test(script: str, tmp_path: Path) -> None:
    """One of the brokers is paused, so it cannot end by itself."""
    tests, started = pids_of(script, tmp_path)
    try:
        assert started
        assert all(alive(each) for each in started)
        tests.send_signal(signal.SIGKILL)
        tests.wait(60)
        eventually(lambda: not any(alive(each) for each in started))
    finally:
        tests.kill()
        for each in filter(alive, started):
            os.kill(each, signal.SIGKILL)


@pytest.fixture(params=["", "1"], ids=["native", "portable"])
def portable(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> bool:
    monkeypatch.setenv("ISOLOG_PORTABLE", request.param)
    return bool(request.param)


def test_start_time_differs_for_a_reused_process_id(portable: bool) -> None:
    assert start_time(os.getpid()) == start_time(os.getpid()) != start_time(1) != ""
    assert start_time(1 << 22) == ""
    if not portable:
        ticks = int(start_time(os.getpid())) / os.sysconf("SC_CLK_TCK")
        assert abs(psutil.boot_time() + ticks - psutil.Process().create_time()) < 2


@pytest.mark.usefixtures("portable")
def test_guard_kills_no_process_with_a_reused_id() -> None:
    with subprocess.Popen(["sleep", "600"]) as other:
        try:
            for started in (f" {start_time(os.getpid())}x", ""):
                lines = f"{other.pid}{started}\n"
                subprocess.run([sys.executable, "-I", guard.__file__], input=lines, text=True)
                assert other.poll() is None
            lines = f"{other.pid} {start_time(other.pid)}\n"
            subprocess.run([sys.executable, "-I", guard.__file__], input=lines, text=True)
            assert other.wait(60) == -signal.SIGKILL
        finally:
            other.kill()
