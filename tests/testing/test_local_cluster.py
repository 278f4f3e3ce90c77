"""Clusters for tests: faults, arguments, and the removal of processes and files."""

from __future__ import annotations

import os
import re
import socket
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psutil
import pytest

from isolog.errors import InvalidConfig, InvalidOption
from isolog.testing import LocalCluster
from tests.conftest import ROOT
from tests.etcd import needs_etcd
from tests.support import NUMBERS, alive, eventually, numbers

pytestmark = pytest.mark.chaos


@pytest.fixture(scope="module")
def cluster():
    with LocalCluster(2, conf={"lease_seconds": 1.5}, racks=["a", "b"]) as found:
        yield found


def test_brokers_have_separate_ids_racks_directories_and_addresses(cluster):
    with cluster.connect() as log:
        described = log.cluster()
    assert [(each.id, each.rack, each.alive) for each in described.brokers] == [
        ("1", "a", True),
        ("2", "b", True),
    ]
    assert [each.address for each in described.brokers] == cluster.bootstrap.split(",")
    assert len({each.directory for each in cluster.brokers.values()}) == 2


def test_restarted_broker_keeps_its_address(cluster):
    for end in (cluster.kill, cluster.stop):
        address, pid = cluster.broker(2).address, cluster.broker(2).pid
        end(2)
        assert not cluster.broker(2).alive
        assert not alive(pid)
        cluster.restart(2)
        assert cluster.broker(2).alive
        assert (cluster.broker(2).address, cluster.broker(2).pid != pid) == (address, True)


def test_restart_waits_for_a_port_in_use(cluster):
    broker = cluster.broker(2)
    cluster.kill(2)
    killed = broker.pid
    host, _, port = broker.address.rpartition(":")
    with ThreadPoolExecutor(1) as pool:
        with socket.create_server((host, int(port))):
            back = pool.submit(cluster.restart, 2)
            eventually(lambda: broker.pid != killed)
            refused = broker.pid
            eventually(lambda: broker.pid != refused)
        back.result(60)
    assert broker.address == f"{host}:{port}"


def test_restart_shuts_a_running_broker_down_cleanly(cluster):
    pid = cluster.broker(1).pid
    cluster.restart(1)
    assert not alive(pid)
    assert cluster.broker(1).alive


def test_pause_stops_the_process_until_resume(cluster):
    process = psutil.Process(cluster.broker(2).pid)
    cluster.pause(2)
    assert process.status() == psutil.STATUS_STOPPED
    assert cluster.broker(2).alive
    cluster.resume(2)
    eventually(lambda: process.status() != psutil.STATUS_STOPPED)


def test_replication_stops_while_a_link_is_cut(cluster):
    with cluster.connect() as log:
        log.create_topic("cut", 1, 2, schema=NUMBERS)
        with log.producer(isolation="read_committed") as producer:
            producer.append("cut", numbers(0, 1), 0).result(20)
            for cut in (lambda: cluster.cut(1, 2), lambda: cluster.cut_off(2)):
                cut()
                waits = producer.append("cut", numbers(1, 1), 0)
                eventually(
                    lambda: (
                        log.describe("cut").partitions[0].log_end_offset
                        > log.describe("cut").partitions[0].high_watermark
                    )
                )
                assert not waits.done()
                cluster.heal()
                waits.result(20)


def test_leader_is_returned_by_its_number(cluster):
    with cluster.connect() as log:
        log.create_topic("led", schema=NUMBERS, assignment=[["2", "1"]])
    assert cluster.leader("led") == 2
    cluster.kill(2)
    assert cluster.leader("led") == 1
    cluster.restart(2)


def test_added_broker_has_the_given_rack(tmp_path: Path):
    with LocalCluster(1, folder=tmp_path / "grown", racks=["a"]) as cluster:
        numbers_ = [cluster.add_broker(rack="b"), cluster.add_broker()]
        with cluster.connect() as log:
            log.create_topic("t", 1, 3, schema=NUMBERS)
            racks = {each.id: each.rack for each in log.cluster().brokers}
    assert racks == {"1": "a", "2": "b", "3": None}
    assert numbers_ == [2, 3]


def test_close_ends_processes_and_removes_only_a_temporary_folder(tmp_path: Path):
    pids = []
    with LocalCluster(1, folder=tmp_path / "kept") as kept, LocalCluster(1) as gone:
        pids = [each.broker(1).pid for each in (kept, gone)]
        kept.pause(1)
    assert [alive(pid) for pid in pids] == [False, False]
    assert kept.broker(1).directory.exists()
    assert not gone.folder.exists()


def test_folder_may_be_a_relative_path_as_text(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    with LocalCluster(1, folder="here") as cluster, cluster.connect() as log:
        assert log.topics() == []
    assert cluster.folder == tmp_path / "here"
    assert cluster.broker(1).directory == tmp_path / "here" / "broker-1"


def test_invalid_setting_raises_the_brokers_error_and_cleans_up(tmp_path: Path):
    with pytest.raises(InvalidConfig, match="lease_seconds"):
        LocalCluster(1, conf={"lease_seconds": -1}, folder=tmp_path)
    here = [each for each in psutil.process_iter(["cmdline"]) if each.info["cmdline"]]
    assert not [each for each in here if any(str(tmp_path) in w for w in each.info["cmdline"])]


@pytest.mark.parametrize(
    ("wrong", "named"),
    [
        (lambda cluster: LocalCluster(0), "0"),
        (lambda cluster: LocalCluster(2, racks=["a"]), "1 racks for 2"),
        (lambda cluster: cluster.kill(7), "7"),
        (lambda cluster: cluster.cut(1, 1), "1"),
        (lambda cluster: cluster.cut(1, 7), "7"),
    ],
)
def test_invalid_arguments_are_refused(cluster, wrong, named):
    with pytest.raises(InvalidOption, match=named):
        wrong(cluster)


# -- the fixture -----------------------------------------------------------------------------------


def pytest_run(folder: Path, text: str, *options: str) -> subprocess.CompletedProcess[str]:
    """Run pytest on a file with this text, in a process with only the package."""
    (folder / "test_it.py").write_text(text)
    return subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "pytest_isolog", *options, "test_it.py"],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=120,
    )


EXAMPLES = re.findall(r"```python\n(.*?)```", (ROOT / "docs" / "testing.md").read_text(), re.DOTALL)


@pytest.mark.parametrize(
    "number", [0, pytest.param(1, marks=needs_etcd), pytest.param(2, marks=pytest.mark.full)]
)
def test_examples_of_the_testing_page_run(tmp_path: Path, number: int):
    assert len(EXAMPLES) == 3
    # The third example imports the store of a user.
    store = "from spark_stream.cluster.stores.sqlite import SqliteStore as MyStore"
    (tmp_path / "my_package.py").write_text(store)
    done = pytest_run(tmp_path, EXAMPLES[number])
    assert done.returncode == 0, done.stdout + done.stderr
    assert " passed" in done.stdout


def test_plugin_loads_isolog_only_for_a_cluster(tmp_path: Path):
    text = (
        "import sys\n"
        "def test_it():\n"
        "    assert not {'spark_stream', 'pyarrow'} & set(sys.modules)\n"
    )
    done = pytest_run(tmp_path, text)
    assert done.returncode == 0, done.stdout + done.stderr


def test_clusters_end_with_a_failing_test(tmp_path: Path):
    text = (
        "def test_it(local_cluster):\n"
        "    one = local_cluster(brokers=1)\n"
        "    print('PID', one.broker(1).pid)\n"
        "    assert False\n"
    )
    done = pytest_run(tmp_path, text)
    assert done.returncode == 1
    assert not alive(int(re.search(r"PID (\d+)", done.stdout).group(1)))


def test_broker_is_found_by_id_or_number(cluster):
    with cluster.connect() as log:
        log.create_topic("named", 1, 2)
        leader = log.describe("named").partitions[0].leader
        others = [each.id for each in log.cluster().brokers if each.id != leader]
    assert cluster.broker(leader) is cluster.broker(int(leader))
    cluster.cut(leader, int(others[0]))
    cluster.heal(leader, others[0])
    cluster.pause(others[0])
    cluster.resume(others[0])
    cluster.kill(leader)
    assert not cluster.broker(leader).alive
    cluster.restart(leader)
    assert cluster.broker(int(leader)).alive
    with pytest.raises(InvalidOption, match="unknown broker '9', the brokers are 1, 2"):
        cluster.kill("9")
