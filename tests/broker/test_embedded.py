"""Embedded mode: one directory, one broker, started when needed, gone when idle."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

import spark_stream as isolog
from spark_stream.client.embedded import known_address
from tests.conftest import stop_broker
from tests.support import BrokerProcess, alive, end_process, eventually, values


def test_many_processes_at_once_start_one_broker(log_dir: Path) -> None:
    script = (
        "import sys, spark_stream as isolog\n"
        "with isolog.connect(path=sys.argv[1]) as log: print(log.status().pid)\n"
    )
    started = [
        subprocess.Popen(
            [sys.executable, "-c", script, str(log_dir)], stdout=subprocess.PIPE, text=True
        )
        for _ in range(8)
    ]
    pids = {process.communicate(timeout=120)[0].strip() for process in started}
    assert len(pids) == 1
    assert all(process.returncode == 0 for process in started)


def test_a_broker_is_found_again(log_dir: Path) -> None:
    with isolog.connect(path=log_dir) as first, isolog.connect(path=log_dir) as second:
        assert first.status().pid == second.status().pid


def test_after_kill_9_the_next_use_starts_another_and_nothing_is_lost(log_dir: Path) -> None:
    with isolog.connect(path=log_dir) as log:
        log.create_topic("t")
        with log.producer() as producer:
            producer.append("t", values("a", "b"), partition=0).result()
        pid = log.status().pid
        end_process(pid)
        assert known_address(log_dir) is not None  # stale: nobody took it away
        assert log.read("t")["value"].to_pylist() == [b"a", b"b"]
        assert log.status().pid != pid


def test_an_idle_broker_ends_and_the_next_use_starts_it_again(log_dir: Path) -> None:
    with isolog.connect(path=log_dir, idle_seconds=0.2) as log:
        log.create_topic("t")
        pid = log.status().pid
        eventually(lambda: not alive(pid))
        assert known_address(log_dir) is None
        assert log.topics() == ["t"]


def test_an_open_stream_keeps_a_broker_from_being_idle(log_dir: Path) -> None:
    with isolog.connect(path=log_dir, idle_seconds=0.2) as log:
        log.create_topic("t")
        pid = log.status().pid
        with log.consumer("t") as consumer:
            records = consumer.records()
            with log.producer() as producer:
                producer.send("t", b"x").result()
                assert next(records).value == b"x"
            assert alive(pid)


def test_its_socket_is_its_owners_alone(log_dir: Path) -> None:
    with isolog.connect(path=log_dir) as log:
        place = Path(log.status().address.removeprefix("unix:"))
        assert place.is_socket()
        assert place.parent.stat().st_mode & 0o077 == 0
        assert place.stat().st_mode & 0o077 == 0
        assert (log_dir / "broker.json").stat().st_mode & 0o077 == 0


@pytest.fixture
def deep(tmp_path: Path) -> Iterator[Path]:
    """A directory whose path is too long for a socket in it."""
    directory = tmp_path / ("d" * 60) / ("e" * 60) / "log"
    yield directory
    stop_broker(directory)


def test_a_path_too_long_for_a_socket_works(deep: Path) -> None:
    with isolog.connect(path=deep) as log:
        log.create_topic("t")
        place = Path(log.status().address.removeprefix("unix:"))
        assert len(os.fsencode(place)) <= 107
        assert place.parent.stat().st_mode & 0o077 == 0


def test_the_broker_of_the_command_line_serves_its_directory_too(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path / "log") as broker, isolog.connect(path=tmp_path / "log") as log:
        assert log.status().pid == broker.pid


def test_a_second_broker_on_the_directory_is_refused(broker: BrokerProcess) -> None:
    with pytest.raises(isolog.errors.DirectoryInUse):
        BrokerProcess(broker.directory).start()
    assert broker.alive


def test_a_busy_port_is_refused(broker: BrokerProcess, tmp_path: Path) -> None:
    with pytest.raises(isolog.errors.PortInUse):
        BrokerProcess(tmp_path / "other", broker.address).start()
    with broker.connect() as log:
        assert log.topics() == []


def foreign(directory: Path) -> None:
    directory.mkdir()
    (directory / "thesis.tex").write_text("mine")


def newer(directory: Path) -> None:
    directory.mkdir()
    (directory / "isolog.json").write_text(
        json.dumps({"format": "isolog", "version": 99, "cluster_id": "x"})
    )


def unreadable(directory: Path) -> None:
    directory.mkdir()
    (directory / "isolog.json").write_text("{")


def plain_file(directory: Path) -> None:
    directory.write_text("not a directory")


@pytest.mark.parametrize(
    ("make", "error"),
    [
        (foreign, isolog.errors.NotALogDirectory),
        (newer, isolog.errors.NewerFormat),
        (unreadable, isolog.errors.NotALogDirectory),
        (plain_file, isolog.errors.NotALogDirectory),
    ],
)
def test_a_directory_that_is_not_ours_or_of_a_newer_format_is_refused(
    log_dir: Path, make, error: type[Exception]
) -> None:
    make(log_dir)
    before = sorted(log_dir.iterdir()) if log_dir.is_dir() else log_dir.read_text()
    with pytest.raises(error):
        isolog.connect(path=log_dir)
    with pytest.raises(error):
        BrokerProcess(log_dir).start()
    if make is foreign:
        assert sorted(log_dir.iterdir()) == before


def test_a_stop_loses_nothing_that_was_acknowledged(broker: BrokerProcess) -> None:
    with broker.connect(timeout=2) as log:
        log.create_topic("t")
        producer = log.producer(timeout_ms=2_000)
        futures = [producer.send("t", str(number)) for number in range(5_000)]
        futures[100].result()
        broker.signal(signal.SIGTERM)
        while broker.alive:
            futures.append(producer.send("t", str(len(futures))))
        assert broker.wait() == 0
        acknowledged = {
            future.result().offset: str(number).encode()
            for number, future in enumerate(futures)
            if future.exception() is None
        }
        with pytest.raises(isolog.errors.IsologError):
            producer.close()
    broker.restart()
    with broker.connect() as log:
        kept = log.read("t")["value"].to_pylist()
    assert 100 < len(acknowledged) < len(futures)
    assert all(kept[offset] == value for offset, value in acknowledged.items())


def test_nothing_runs_in_the_users_process_group(log_dir: Path) -> None:
    """Ctrl-C in a terminal must not reach the broker that a program started."""
    with isolog.connect(path=log_dir) as log:
        broker = psutil.Process(log.status().pid)
        assert os.getsid(broker.pid) != os.getsid(0)
        assert broker.parent() is None or broker.parent().pid != os.getpid()
