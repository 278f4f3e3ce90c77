"""Directories and ports that a broker refuses: those of others, and busy ones."""

from __future__ import annotations

import fcntl
import socket
import threading
import time

import pytest

import isolog
from isolog.errors import (
    DirectoryInUse,
    InvalidConfig,
    InvalidOption,
    IsologError,
    NotALogDirectory,
    PortInUse,
    UnsupportedFormat,
)
from spark_stream.storage.disk.directory import FORMAT_VERSION
from spark_stream.wire import limits
from tests.client.connecting.listing import listing
from tests.support import BrokerProcess, free_port

# Nearly every test here starts a broker.
pytestmark = [pytest.mark.slow, pytest.mark.timeout(120)]


def test_a_directory_with_other_files_is_refused_unchanged(tmp_path):
    (tmp_path / "thesis.tex").write_text("precious")
    before = listing(tmp_path)
    with pytest.raises(NotALogDirectory, match=str(tmp_path)):
        isolog.connect(path=tmp_path)
    with pytest.raises(NotALogDirectory, match=r"thesis\.tex"):
        BrokerProcess(tmp_path).start()
    assert {k: v for k, v in listing(tmp_path).items() if not k.endswith(".stderr")} == before
    assert [p for p in tmp_path.iterdir() if p.is_dir()] == []


@pytest.mark.quick("NotALogDirectory")
@pytest.mark.parametrize(
    ("described", "error"),
    [
        ('{"format": "isolog", "version": 2, "cluster_id": "x"}', UnsupportedFormat),
        ('{"format": "kafka", "version": 1, "cluster_id": "x"}', NotALogDirectory),
        ("", NotALogDirectory),
        ("\udcff", NotALogDirectory),
    ],
)
def test_a_directory_of_another_format_is_refused_unchanged(tmp_path, described, error):
    path = tmp_path / "data"
    path.mkdir()
    (path / "isolog.json").write_bytes(described.encode("utf-8", "surrogateescape"))
    (path / "topics").mkdir()
    before = listing(path)
    with pytest.raises(error, match=str(path)):
        isolog.connect(path=path)
    with pytest.raises(error, match=str(path)):
        BrokerProcess(path).start()
    assert listing(path) == before


def test_file_in_place_of_the_directory_is_refused(tmp_path):
    file = tmp_path / "file"
    file.write_text("precious")
    with pytest.raises(NotALogDirectory, match="not a directory"):
        isolog.connect(path=file)
    with pytest.raises(NotALogDirectory, match="not a directory"):
        BrokerProcess(file).start()
    with pytest.raises(NotALogDirectory, match="file"):
        isolog.connect(path=file / "below")
    assert file.read_text() == "precious"


def test_an_impossible_path_fails_immediately(tmp_path):
    begun = time.monotonic()
    with pytest.raises(InvalidOption, match="path"):
        isolog.connect(path=tmp_path / ("x" * 300))
    with pytest.raises(InvalidOption, match="its file system does not allow new directories"):
        isolog.connect(path="/proc/no-such-process/log")
    assert time.monotonic() - begun < 20
    assert list(tmp_path.iterdir()) == []


def test_client_and_storage_have_the_same_format_version():
    assert limits.FORMAT_VERSION == FORMAT_VERSION


@pytest.mark.rule("one broker serves a directory", "broker/node/identity.py")
def test_two_brokers_never_open_one_directory(tmp_path):
    """Many start on one empty directory. One serves, and the others report the reason."""
    path = tmp_path / "data"
    started: list[BrokerProcess] = []
    refused: list[IsologError] = []

    def start() -> None:
        broker = BrokerProcess(path)
        try:
            started.append(broker.start())
        except IsologError as error:
            refused.append(error)

    threads = [threading.Thread(target=start) for _ in range(4)]
    try:
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
        assert len(started) == 1
        assert [type(error) for error in refused] == [DirectoryInUse] * 3
        with started[0].connect() as log:
            log.create_topic("t")
    finally:
        for broker in started:
            broker.kill()


def test_a_broker_without_the_lock_creates_no_files(tmp_path):
    """The owner of a directory is decided under the lock. Otherwise two brokers could own it."""
    path = tmp_path / "data"
    path.mkdir()
    with (path / "broker.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        with pytest.raises(DirectoryInUse, match=str(path)):
            BrokerProcess(path).start()
    assert [each.name for each in path.iterdir()] == ["broker.lock"]


def test_a_busy_port_is_reported(tmp_path):
    with BrokerProcess(tmp_path / "a") as first:
        with pytest.raises(PortInUse, match=first.address):
            BrokerProcess(tmp_path / "b", first.address).start()
        with socket.socket() as other:
            other.bind(("127.0.0.1", 0))
            other.listen()
            port = other.getsockname()[1]
            with pytest.raises(PortInUse, match=str(port)):
                BrokerProcess(tmp_path / "c", f"127.0.0.1:{port}").start()
    # The failed start released its directory.
    with BrokerProcess(tmp_path / "b"):
        pass


@pytest.mark.parametrize("listen", ["9092", "127.0.0.1:70000", "unix:"])
def test_an_invalid_listen_address_is_refused(tmp_path, listen):
    with pytest.raises(InvalidConfig, match=r"listen: .* is not host:port or unix:PATH"):
        BrokerProcess(tmp_path / "log", listen).start()


def test_a_port_that_was_just_in_use_can_be_used_again(tmp_path):
    address = f"127.0.0.1:{free_port()}"
    for _ in range(2):
        with BrokerProcess(tmp_path / "log", address) as broker, broker.connect() as log:
            log.topics()
