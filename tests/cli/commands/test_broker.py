"""``isolog broker``: start, status, stop, and errors of a start."""

from __future__ import annotations

import json
import os
import re
import select
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

import isolog
from spark_stream.broker.access.jwts import JwtSettings
from spark_stream.broker.config import BrokerConfig, TlsSettings
from spark_stream.cli.commands.broker import _absolute_files
from spark_stream.testing.local_cluster import pause_process
from tests.cli.conftest import COMMAND, TIMEOUT_S, run
from tests.support import eventually, free_port


@pytest.fixture
def directory(tmp_path: Path) -> Iterator[Path]:
    """A directory whose broker, if any, ends with the test."""
    path = tmp_path / "log"
    path.mkdir()
    yield path
    if (path / "broker.json").exists():
        run("broker", "stop", "--dir", str(path))


@pytest.mark.parametrize("listen", ["127.0.0.1", "127.0.0.1:99999", ":9092", "unix:"])
def test_invalid_listen_address_is_refused_before_the_directory_is_created(tmp_path, call, listen):
    started = call("broker", "start", "--dir", str(tmp_path / "new"), "--listen", listen)
    assert started.code == 1
    assert started.err.startswith(f"error: listen: {listen!r} is not host:port or unix:PATH")
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize("listen", ["0.0.0.0:9092", "[::]:9092", "0:9092"])
def test_wildcard_address_without_advertise_is_refused_before_the_directory_is_created(
    tmp_path, call, listen
):
    started = call("broker", "start", "--dir", str(tmp_path / "new"), "--listen", listen)
    assert started.code == 1
    assert started.err.startswith(f"error: listen: {listen} stands for all addresses")
    assert "--advertise HOST or HOST:9092" in started.err
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize(
    ("advertise", "problem"),
    [
        ("0.0.0.0:1", "not an address that a client can connect to"),
        ("log:0", "not an address that a client can connect to"),
        ("a:b", "is not host or host:port"),
        ("fe80::1", "is not host or host:port"),
        ("a b", "is not host or host:port"),
        ("host/path", "is not host or host:port"),
    ],
)
def test_advertise_must_be_an_address(tmp_path, call, advertise, problem):
    given = ["--listen", "0.0.0.0:0", "--advertise", advertise]
    started = call("broker", "start", "--dir", str(tmp_path / "new"), *given)
    assert started.code == 1
    assert started.err.startswith(f"error: advertise: {advertise!r}")
    assert problem in started.err
    assert not (tmp_path / "new").exists()


def test_clients_get_the_advertised_address_of_a_broker_on_all_interfaces(directory):
    given = ["--listen", "0.0.0.0:0", "--advertise", "localhost", "--daemon"]
    started = run("broker", "start", "--dir", str(directory), *given)
    assert (started.code, started.err) == (0, "")
    address = started.out.split()[-1]
    assert re.fullmatch(r"localhost:[1-9]\d*", address)
    with isolog.connect(address) as log:
        log.create_topic("t")
        assert [each.address for each in log.cluster().brokers] == [address]


def test_a_background_broker_starts_a_kafka_gateway(directory):
    address = f"127.0.0.1:{free_port()}"
    given = ["--listen", "127.0.0.1:0", "--kafka-listen", address, "--daemon"]
    assert run("broker", "start", "--dir", str(directory), *given).code == 0
    assert json.loads((directory / "broker.json").read_text())["kafka_address"] == address
    ready = f"isolog kafka-gateway ready {address}"
    eventually(lambda: ready in (directory / "broker.log").read_text())


def pid_of(directory: Path) -> int:
    return int(json.loads((directory / "broker.json").read_text())["pid"])


@pytest.mark.quick("15")
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_foreground_broker_prints_one_ready_line(directory, number):
    command = [*COMMAND, "broker", "start", "--dir", str(directory), "--listen", "127.0.0.1:0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as broker:
        assert broker.stdout is not None
        line = broker.stdout.readline()
        assert line.startswith("isolog broker ready 127.0.0.1:")
        with isolog.connect(line.split()[-1]) as log:
            assert log.topics() == []
        broker.send_signal(number)
        rest, _ = broker.communicate(timeout=TIMEOUT_S)
    assert (rest, broker.returncode) == ("", 0)


def test_broker_start_reads_the_directory_from_isolog_path(directory):
    """ISOLOG_PATH names the log for every command, including `broker start`."""
    unnamed = run("broker", "start", "--listen", "127.0.0.1:0", "--daemon")
    assert (unnamed.code, unnamed.out) == (2, "")
    assert "Give --dir DIR, or set ISOLOG_DIR or ISOLOG_PATH." in unnamed.err
    start = ("broker", "start", "--listen", "127.0.0.1:0", "--daemon")
    started = run(*start, ISOLOG_PATH=str(directory))
    assert (started.code, started.err) == (0, "")
    assert pid_of(directory)


def test_foreground_broker_has_the_configured_memory_limit(directory, tmp_path):
    """The allocator reads it at the start of the process, so the process restarts itself."""
    conf = tmp_path / "broker.toml"
    conf.write_text("memory_bytes = 268435456\n")
    command = [*COMMAND, "broker", "start", "--dir", str(directory), "--listen", "127.0.0.1:0"]
    with subprocess.Popen(
        [*command, "--conf", str(conf)], stdout=subprocess.PIPE, text=True
    ) as broker:
        assert broker.stdout is not None
        assert broker.stdout.readline().startswith("isolog broker ready 127.0.0.1:")
        given = Path(f"/proc/{broker.pid}/environ").read_bytes().split(b"\0")
        broker.terminate()
        broker.communicate(timeout=TIMEOUT_S)
    assert {b"MIMALLOC_RESERVE_OS_MEMORY=256MiB", b"MIMALLOC_DISALLOW_OS_ALLOC=1"} <= set(given)


def test_background_broker_from_start_to_stop(directory, call, tmp_path):
    none = call("broker", "status", "--dir", str(directory))
    assert (none.code, none.out) == (1, "")
    assert none.err.startswith(f"error: no broker serves {directory}")
    assert list(directory.iterdir()) == []  # status starts no broker

    (tmp_path / "broker.toml").write_text('listen = "127.0.0.1:0"\n[topic]\nretention.ms = 60000\n')
    start = ("broker", "start", "--conf", str(tmp_path / "broker.toml"), "--daemon")
    started = run(*start, "--dir", str(directory))
    assert (started.code, started.err) == (0, "")
    assert started.out.startswith("isolog broker ready 127.0.0.1:")
    assert started.out.count("\n") == 1
    address = started.out.split()[-1]
    with isolog.connect(address) as log:
        assert log.create_topic("t").config["retention.ms"] == "60000"

    status = run("broker", "status", "--dir", str(directory), "--output", "json")
    assert status.code == 0
    facts = json.loads(status.out)
    assert (facts["address"], facts["pid"], facts["topics"]) == (address, pid_of(directory), 1)
    assert address in call("broker", "status", "--bootstrap", address).out
    assert address in call("broker", "status", "--path", str(directory)).out
    assert call("topic", "list", "--dir", str(directory)).code == 0

    second = call(*start, "--dir", str(directory))
    assert (second.code, second.out) == (1, "")
    assert second.err.startswith("error: another broker serves ")
    assert second.err.count("\n") == 1

    other = call("broker", "start", "--dir", str(tmp_path / "b"), "--listen", address, "--daemon")
    assert other.code == 1
    assert f"cannot listen on {address}" in other.err

    stopped = run("broker", "stop", ISOLOG_PATH=str(directory))
    assert (stopped.code, stopped.out) == (0, "")
    assert "stopped" in stopped.err
    again = call("broker", "stop", "--dir", str(directory))
    assert (again.code, again.err.count("\n")) == (1, 1)
    gone = call("broker", "status", "--bootstrap", address)
    assert (gone.code, gone.out) == (1, "")
    assert f"no broker answers at {address}" in gone.err


def test_killed_broker_is_not_reported_as_running(directory, call):
    run("broker", "start", "--dir", str(directory), "--listen", "127.0.0.1:0", "--daemon")
    handle = os.pidfd_open(pid_of(directory))
    signal.pidfd_send_signal(handle, signal.SIGKILL)
    assert select.select([handle], [], [], TIMEOUT_S)[0]
    os.close(handle)
    facts = json.loads((directory / "broker.json").read_text())
    # Another process may get its id, here the process of this test.
    (directory / "broker.json").write_text(json.dumps(facts | {"pid": os.getpid()}))
    assert call("broker", "stop", "--dir", str(directory)).code == 1
    assert call("broker", "status", "--dir", str(directory)).code == 1


def test_hanging_broker_is_reported_within_the_timeout(directory, call):
    run("broker", "start", "--dir", str(directory), "--listen", "127.0.0.1:0", "--daemon")
    pid = pid_of(directory)
    pause_process(pid)
    try:
        status = call("broker", "status", "--dir", str(directory), "--timeout", "0.5")
        stop = call("broker", "stop", "--dir", str(directory), "--timeout", "0.2")
    finally:
        os.kill(pid, signal.SIGCONT)
    assert status.code == 1
    assert "error: no answer from" in status.err
    assert stop.code == 1
    assert f"process {pid}" in stop.err


@pytest.mark.parametrize("daemon", [[], ["--daemon"]])
def test_directory_of_another_user_is_refused_and_unchanged(call, tmp_path, daemon):
    (tmp_path / "thesis.tex").write_text("")
    refused = call("broker", "start", "--dir", str(tmp_path), "--listen", "127.0.0.1:0", *daemon)
    assert (refused.code, refused.out) == (1, "")
    assert "was not made by isolog" in refused.err
    assert [each.name for each in tmp_path.iterdir()] == ["thesis.tex"]


def test_error_of_a_failed_directory_creation_does_not_mention_a_log_file(call):
    refused = call(
        "broker", "start", "--dir", "/proc/isolog", "--daemon", "--listen", "127.0.0.1:0"
    )
    assert (refused.code, refused.out) == (1, "")
    assert refused.err.startswith("error: /proc/isolog: ")
    assert "permission to create" in refused.err
    assert "log file" not in refused.err


def test_invalid_configuration_names_the_setting(call, tmp_path):
    (tmp_path / "broker.toml").write_text("lisen = 1\n")
    refused = call(
        "broker", "start", "--dir", str(tmp_path / "log"), "--conf", str(tmp_path / "broker.toml")
    )
    assert refused.code == 1
    assert refused.err.startswith("error: lisen: there is no such setting")


@pytest.mark.parametrize("value", ["abc", "0.1", ""])
def test_invalid_setting_is_named_with_its_value(call, tmp_path, monkeypatch, value):
    monkeypatch.setenv("ISOLOG_LEASE_SECONDS", value)
    refused = call("broker", "start", "--dir", str(tmp_path / "log"), "--daemon")
    assert (refused.code, refused.out) == (1, "")
    assert refused.err.startswith("error: lease_seconds: ")
    assert f", not {value!r} (" in refused.err
    assert not (tmp_path / "log").exists()


def test_a_broker_needs_a_directory(call):
    refused = call("broker", "start")
    assert refused.code == 2
    assert "--dir" in refused.err


def test_a_daemon_gets_absolute_paths_of_tls_and_jwt_files(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    tls = {"cert": "c.pem", "key": "k.pem", "min_version": "1.3"}
    jwt = {"issuer": "i", "audience": "a", "keys": "keys.json"}
    given = BrokerConfig.load(None, dir=tmp_path, tls=tls, jwt=jwt, kafka_ca="ca.pem")
    for name, value in _absolute_files(given).items():
        monkeypatch.setenv(name, value)
    found = BrokerConfig.load(None, dir=tmp_path)
    assert found.tls == TlsSettings(f"{tmp_path}/c.pem", f"{tmp_path}/k.pem", min_version="1.3")
    assert found.jwt == JwtSettings(issuer="i", audience="a", keys=f"{tmp_path}/keys.json")
    assert found.kafka_ca == f"{tmp_path}/ca.pem"
