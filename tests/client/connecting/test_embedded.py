"""``connect(path=...)``: one broker for a directory, started when needed, for its owner only."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

import isolog
from isolog.errors import (
    BrokerUnavailable,
    DirectoryInUse,
    InvalidConfig,
    NotALogDirectory,
    UnknownLog,
)
from spark_stream.client.connecting.embedded import known_address
from spark_stream.wire.limits import SOCKET_PATH_MAX
from tests.client.connecting.listing import listing
from tests.support import BrokerProcess, alive, end_process, eventually, values

# Each test uses a broker.
pytestmark = [pytest.mark.slow, pytest.mark.timeout(120)]


class Directory:
    """A log directory whose embedded brokers end with the test."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.seen: set[int] = set()

    def connect(self, **options) -> isolog.Log:
        log = isolog.connect(path=self.path, **options)
        self.seen.add(log.status().pid)
        return log

    @property
    def pid(self) -> int:
        return int(json.loads((self.path / "broker.json").read_text())["pid"])

    def end(self) -> None:
        with contextlib.suppress(OSError, ValueError):
            self.seen.add(self.pid)
        for pid in self.seen:
            end_process(pid)


@pytest.fixture
def directory(tmp_path: Path) -> Iterator[Directory]:
    found = Directory(tmp_path / "data")
    try:
        yield found
    finally:
        found.end()


@pytest.mark.parametrize("kind", ["missing", "empty"])
def test_connect_without_create_creates_no_files(tmp_path, kind):
    place = tmp_path / "typo" / "log"
    if kind == "empty":
        place.mkdir(parents=True)
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(UnknownLog, match=f"there is no log at {place} .*[Cc]heck the path"):
        isolog.connect(path=place, create=False)
    assert sorted(tmp_path.rglob("*")) == before


def test_connect_without_create_does_not_change_other_files(tmp_path):
    (tmp_path / "theirs.csv").write_text("1")
    with pytest.raises(NotALogDirectory):
        isolog.connect(path=tmp_path, create=False)
    with pytest.raises(NotALogDirectory, match="not a directory"):
        isolog.connect(path=tmp_path / "theirs.csv", create=False)
    assert listing(tmp_path) == {"theirs.csv": b"1"}


@pytest.mark.full  # the other tests start it with create
def test_connect_without_create_starts_the_broker_of_an_existing_log(directory):
    with directory.connect() as log:
        log.create_topic("t")
    end_process(directory.pid, signal.SIGTERM)
    with directory.connect(create=False) as log:
        assert log.topics() == ["t"]


ASK = """
import sys
import isolog
with isolog.connect(path=sys.argv[1]) as log:
    with log.producer() as producer:
        try:
            log.create_topic("t")
        except isolog.errors.TopicExists:
            pass
        producer.send("t", sys.argv[2]).result(30)
    print(log.status().pid)
"""


@pytest.mark.rule("start of the broker of a directory", "client/connecting/embedded.py")
def test_eight_concurrent_processes_get_one_broker(directory):
    asking = [
        subprocess.Popen(
            [sys.executable, "-c", ASK, str(directory.path), str(number)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for number in range(8)
    ]
    try:
        told = [each.communicate(timeout=90) for each in asking]
    finally:
        for each in asking:
            each.kill()
    assert [each.returncode for each in asking] == [0] * 8, told
    pids = {int(out) for out, _ in told}
    directory.seen |= pids
    assert pids == {directory.pid}
    with directory.connect() as log:
        assert sorted(log.read("t")["value"].to_pylist()) == [str(n).encode() for n in range(8)]
    assert (directory.path / "broker.log").read_text().count("Traceback") == 0


def test_many_concurrent_threads_get_one_broker(directory):
    pids, errors = [], []

    def ask() -> None:
        try:
            with isolog.connect(path=directory.path) as log:
                pids.append(log.status().pid)
        except Exception as error:
            errors.append(error)

    threads = [threading.Thread(target=ask) for _ in range(12)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(90)
    directory.seen |= set(pids)
    assert errors == []
    assert len(set(pids)) == 1


def test_the_directory_has_its_format_and_the_address_of_its_broker(directory):
    with directory.connect() as log:
        status = log.status()
        facts = json.loads((directory.path / "broker.json").read_text())
        assert facts == {
            "address": status.address,
            "peer_address": "",
            "metrics_address": "",
            "kafka_address": "",
            "pid": status.pid,
            "directory": str(directory.path),
        }
        assert status.address.startswith("unix:")
        described = json.loads((directory.path / "isolog.json").read_text())
        assert described["format"] == "isolog"
        assert described["version"] == 1
        assert described["cluster_id"] == status.cluster_id
        assert status.directory == str(directory.path)


def test_only_its_owner_can_open_it(directory):
    with directory.connect() as log:
        socket_path = Path(log.status().address.removeprefix("unix:"))
        assert stat.S_ISSOCK(socket_path.stat().st_mode)
        assert stat.S_IMODE(socket_path.stat().st_mode) & 0o077 == 0
        for folder in (directory.path, socket_path.parent):
            assert stat.S_IMODE(folder.stat().st_mode) == 0o700
        for name in ("broker.json", "broker.lock", "broker.log", "start.lock"):
            assert stat.S_IMODE((directory.path / name).stat().st_mode) == 0o600, name
        log.create_topic("t")
        for file in directory.path.rglob("*"):
            assert stat.S_IMODE(file.stat().st_mode) & 0o077 == 0, file


def test_files_in_a_shared_folder_are_private(directory):
    directory.path.mkdir(mode=0o755)
    with directory.connect() as log:
        log.create_topic("t")
        for file in directory.path.rglob("*"):
            assert stat.S_IMODE(file.stat().st_mode) & 0o077 == 0, file


def test_no_port_is_opened(directory):
    with directory.connect() as log:
        pid = log.status().pid
        assert psutil.Process(pid).net_connections("inet") == []


def test_the_broker_outlives_the_process_that_started_it(directory):
    subprocess.run([sys.executable, "-c", ASK, str(directory.path), "x"], check=True, timeout=60)
    pid = directory.pid
    assert alive(pid)
    with directory.connect() as log:
        assert log.status().pid == pid
        assert log.read("t").num_rows == 1


def test_an_interrupt_at_the_terminal_does_not_reach_the_broker(directory):
    """Control-C goes to the whole foreground group, and the broker is in a separate session."""
    with directory.connect() as log:
        pid = log.status().pid
        assert os.getsid(pid) != os.getsid(0)
        assert os.getpgid(pid) != os.getpgid(0)


def test_a_broker_starts_after_its_predecessor_was_killed(directory):
    with directory.connect() as log:
        log.create_topic("t")
        with log.producer() as producer:
            producer.append("t", values("a", "b"))
        first = log.status().pid
        end_process(first, signal.SIGKILL)
        assert (directory.path / "broker.json").exists()  # stale, and ignored
        # The same connection finds, and starts, the next one.
        assert log.read("t").num_rows == 2
        second = directory.pid
        assert second != first
        with directory.connect() as other:
            assert other.status().pid == second


@pytest.mark.full  # the test above has an address that no process has
def test_a_recorded_address_that_another_process_reuses_is_ignored(directory, tmp_path):
    """The broker died, and another process uses its port. It must not be used as the broker."""
    with BrokerProcess(directory.path) as dead, dead.connect() as log:
        log.create_topic("mine")
        dead.kill()
        with BrokerProcess(tmp_path / "other", dead.address) as other:
            assert known_address(directory.path) == other.address
            with directory.connect() as log:
                assert log.status().pid != other.pid
                assert log.topics() == ["mine"]


@pytest.mark.rule("the end of an idle broker", "broker/serving/pool.py", "broker/process.py")
def test_an_idle_broker_ends_and_the_next_use_starts_another(directory):
    with directory.connect(idle_seconds=0.5) as log:
        log.create_topic("t")
        first = log.status().pid
        eventually(lambda: not alive(first))
        assert not (directory.path / "broker.json").exists()
        assert not (directory.path / "run" / "broker.sock").exists()
        assert log.topics() == ["t"]
        assert directory.pid != first


def test_an_open_stream_keeps_the_broker_running(directory):
    with directory.connect(idle_seconds=0.5) as log:
        log.create_topic("t")
        first = log.status().pid
        with log.consumer("t") as consumer, log.producer() as producer:
            records = consumer.records()
            producer.send("t", b"a").result(20)
            assert next(records).value == b"a"
            until = time.monotonic() + 2.0
            while time.monotonic() < until:
                threading.Event().wait(0.1)
                assert alive(first)


def test_idle_seconds_can_be_set_by_the_environment(directory, monkeypatch):
    monkeypatch.setenv("ISOLOG_IDLE_SECONDS", "0.5")
    with directory.connect() as log:
        first = log.status().pid
        eventually(lambda: not alive(first))


@pytest.mark.parametrize("value", ["soon", "-1", "nan"])
def test_invalid_idle_seconds_are_refused_by_name(directory, monkeypatch, value):
    monkeypatch.setenv("ISOLOG_IDLE_SECONDS", value)
    with pytest.raises(InvalidConfig, match=r"(?i)idle_seconds"):
        directory.connect()


def test_a_running_broker_on_tcp_is_used(directory):
    with BrokerProcess(directory.path) as broker, directory.connect() as log:
        assert log.status().pid == broker.pid


def test_a_second_broker_on_the_directory_is_refused(directory):
    with directory.connect() as log:
        eventually(lambda: log.cluster().controller)  # its last write without a client
        before = listing(directory.path)
        begun = time.monotonic()
        served = f"{directory.path}: process {directory.pid}"
        with pytest.raises(DirectoryInUse, match=re.escape(served)):
            BrokerProcess(directory.path).start()
        assert time.monotonic() - begun < 20
        assert log.topics() == []
        after = listing(directory.path)
        # The files that the serving broker writes during attempts of others.
        for name in [each for each in before if each.startswith(("broker.log", "leases/"))]:
            del before[name]
        before.pop("metadata.sqlite-shm")  # SQLite registers its readers there
        assert {name: after[name] for name in before} == before


def test_a_directory_that_was_moved_while_its_broker_runs_names_the_process(directory):
    """The recorded socket is at the old path. No broker starts at the new one."""
    with directory.connect() as log:
        log.create_topic("t")
    pid, moved = directory.pid, directory.path.with_name("moved")
    directory.path.rename(moved)
    begun = time.monotonic()
    with pytest.raises(DirectoryInUse, match=rf"process {pid} serves {moved} as") as refused:
        isolog.connect(path=moved).topics()
    assert time.monotonic() - begun < 20, "it did not wait for a minute"
    assert f"kill {pid}" in refused.value.hint
    end_process(pid)
    directory.path = moved
    with directory.connect() as log:
        assert log.topics() == ["t"]


def test_a_relative_path_and_a_link_are_the_same_directory(directory, monkeypatch):
    with directory.connect() as log:
        pid = log.status().pid
    monkeypatch.chdir(directory.path.parent)
    link = directory.path.parent / "link"
    link.symlink_to(directory.path)
    for path in ("data", "./data/../data", str(link), link):
        with isolog.connect(path=path) as log:
            assert log.status().pid == pid


@pytest.mark.quick("a%20b", "~+&")
@pytest.mark.parametrize(
    "name", ["my log", "100%", "a%20b", "h#x", "q?y", "ünï", "[z]", "a\\b", "~+&"]
)
def test_a_path_may_hold_any_character(tmp_path, name):
    """Flight's locations are URIs, in which most of these characters have a meaning."""
    directory = Directory(tmp_path / name)
    try:
        with directory.connect() as log:
            log.create_topic("t")
            assert (tmp_path / name / "run" / "broker.sock").is_socket()
        with directory.connect() as another:
            assert another.topics() == ["t"]
    finally:
        directory.end()


def test_a_path_too_long_for_a_socket_works(tmp_path):
    deep = tmp_path / "/".join(["a-rather-long-folder-name"] * 6) / "ünïcode"
    assert len(os.fsencode(deep / "run" / "broker.sock")) > SOCKET_PATH_MAX
    directory = Directory(deep)
    try:
        with directory.connect() as log:
            log.create_topic("t")
            where = Path(log.status().address.removeprefix("unix:"))
            assert len(os.fsencode(where)) <= SOCKET_PATH_MAX
            assert stat.S_IMODE(where.parent.stat().st_mode) == 0o700
            end_process(log.status().pid, signal.SIGTERM)
            assert not where.exists()
            assert log.topics() == ["t"]
    finally:
        directory.end()


def test_the_error_of_a_broker_that_cannot_start_reaches_the_caller(directory, monkeypatch):
    """The reason reaches the caller, not a timeout."""
    monkeypatch.setenv("ISOLOG_TOPIC", '{"segment.bytes": 1}')
    begun = time.monotonic()
    with pytest.raises(InvalidConfig, match=r"segment\.bytes"):
        directory.connect()
    assert time.monotonic() - begun < 20


def test_the_error_of_a_broker_that_exits_names_its_log_file(directory, monkeypatch, tmp_path):
    (tmp_path / "sitecustomize.py").write_text("import os; os._exit(3)")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setattr("spark_stream.client.connecting.embedded.Path.resolve", lambda path: path)
    begun = time.monotonic()
    with pytest.raises(BrokerUnavailable, match=str(directory.path)) as caught:
        isolog.connect(path=directory.path, timeout=2)
    assert "broker.log" in caught.value.hint
    assert time.monotonic() - begun < 30


def test_a_stale_socket_file_is_replaced(directory):
    run = directory.path / "run"
    with directory.connect() as log:
        end_process(log.status().pid)
    assert (run / "broker.sock").exists()
    with directory.connect() as log:
        assert log.status().address == f"unix:{run / 'broker.sock'}"


def test_a_stopped_broker_removes_its_address(directory):
    with directory.connect() as log:
        pid = log.status().pid
        end_process(pid, signal.SIGTERM)
        assert not (directory.path / "broker.json").exists()
        assert not (directory.path / "run" / "broker.sock").exists()
