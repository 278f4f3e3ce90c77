"""``isolog broker``: start, status, stop, and what keeps a broker from starting."""

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
from tests.cli.conftest import COMMAND, TIMEOUT_S, run


@pytest.fixture
def directory(tmp_path: Path) -> Iterator[Path]:
    """A directory whose broker, if there is one, ends with the test."""
    path = tmp_path / "log"
    path.mkdir()
    yield path
    if (path / "broker.json").exists():
        run("broker", "stop", "--dir", str(path))


@pytest.mark.parametrize("listen", ["127.0.0.1", "127.0.0.1:99999", ":9092", "unix:"])
def test_an_address_that_cannot_be_is_refused_before_a_directory_is_made(tmp_path, call, listen):
    started = call("broker", "start", "--dir", str(tmp_path / "new"), "--listen", listen)
    assert started.code == 1
    assert started.err.startswith(f"error: listen: {listen!r} is not host:port or unix:PATH")
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize("listen", ["0.0.0.0:9092", "[::]:9092", "0:9092"])
def test_an_address_that_no_client_can_connect_to_is_refused_before_a_directory_is_made(
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
def test_what_is_advertised_has_to_be_an_address(tmp_path, call, advertise, problem):
    given = ["--listen", "0.0.0.0:0", "--advertise", advertise]
    started = call("broker", "start", "--dir", str(tmp_path / "new"), *given)
    assert started.code == 1
    assert started.err.startswith(f"error: advertise: {advertise!r}")
    assert problem in started.err
    assert not (tmp_path / "new").exists()


def test_a_broker_that_listens_everywhere_gives_clients_the_address_that_it_advertises(directory):
    given = ["--listen", "0.0.0.0:0", "--advertise", "localhost", "--daemon"]
    started = run("broker", "start", "--dir", str(directory), *given)
    assert (started.code, started.err) == (0, "")
    address = started.out.split()[-1]
    assert re.fullmatch(r"localhost:[1-9]\d*", address)
    with isolog.connect(address) as log:
        log.create_topic("t")
        assert [each.address for each in log.cluster().brokers] == [address]


def pid_of(directory: Path) -> int:
    return int(json.loads((directory / "broker.json").read_text())["pid"])


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_in_the_foreground_one_line_says_that_it_serves(directory, number):
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


def test_the_directory_may_be_named_by_the_variable_of_all_commands(directory):
    """ISOLOG_PATH names the log to every command, so `broker start` takes it as well."""
    unnamed = run("broker", "start", "--listen", "127.0.0.1:0", "--daemon")
    assert (unnamed.code, unnamed.out) == (2, "")
    assert "Give --dir DIR, or set ISOLOG_DIR or ISOLOG_PATH." in unnamed.err
    start = ("broker", "start", "--listen", "127.0.0.1:0", "--daemon")
    started = run(*start, ISOLOG_PATH=str(directory))
    assert (started.code, started.err) == (0, "")
    assert pid_of(directory)


def test_in_the_foreground_the_bound_on_memory_is_the_configured_one(directory, tmp_path):
    """The allocator reads it when the process begins, so the process begins once more."""
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


def test_a_broker_in_the_background_from_start_to_stop(directory, call, tmp_path):
    none = call("broker", "status", "--dir", str(directory))
    assert (none.code, none.out) == (1, "")
    assert none.err.startswith(f"error: no broker serves {directory}")
    assert list(directory.iterdir()) == []  # status starts nothing

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


def test_a_broker_that_was_killed_is_not_taken_for_one_that_lives(directory, call):
    run("broker", "start", "--dir", str(directory), "--listen", "127.0.0.1:0", "--daemon")
    handle = os.pidfd_open(pid_of(directory))
    signal.pidfd_send_signal(handle, signal.SIGKILL)
    assert select.select([handle], [], [], TIMEOUT_S)[0]
    os.close(handle)
    facts = json.loads((directory / "broker.json").read_text())
    # Its number may come to mean somebody else; here, this very test.
    (directory / "broker.json").write_text(json.dumps(facts | {"pid": os.getpid()}))
    assert call("broker", "stop", "--dir", str(directory)).code == 1
    assert call("broker", "status", "--dir", str(directory)).code == 1


def test_a_broker_that_hangs_is_reported_in_time(directory, call):
    run("broker", "start", "--dir", str(directory), "--listen", "127.0.0.1:0", "--daemon")
    pid = pid_of(directory)
    os.kill(pid, signal.SIGSTOP)
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
def test_a_directory_of_somebody_else_is_left_alone(call, tmp_path, daemon):
    (tmp_path / "thesis.tex").write_text("")
    refused = call("broker", "start", "--dir", str(tmp_path), "--listen", "127.0.0.1:0", *daemon)
    assert (refused.code, refused.out) == (1, "")
    assert "was not made by isolog" in refused.err
    assert [each.name for each in tmp_path.iterdir()] == ["thesis.tex"]


def test_a_directory_that_cannot_be_made_is_said_so_and_no_log_file_is_spoken_of(call):
    refused = call(
        "broker", "start", "--dir", "/proc/isolog", "--daemon", "--listen", "127.0.0.1:0"
    )
    assert (refused.code, refused.out) == (1, "")
    assert refused.err.startswith("error: /proc/isolog: ")
    assert "permission to create" in refused.err
    assert "log file" not in refused.err


def test_a_bad_configuration_is_named(call, tmp_path):
    (tmp_path / "broker.toml").write_text("lisen = 1\n")
    refused = call(
        "broker", "start", "--dir", str(tmp_path / "log"), "--conf", str(tmp_path / "broker.toml")
    )
    assert refused.code == 1
    assert refused.err.startswith("error: lisen: there is no such setting")


@pytest.mark.parametrize("value", ["abc", "0.1", ""])
def test_a_bad_setting_is_named_with_the_value_that_was_given(call, tmp_path, monkeypatch, value):
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
    given = BrokerConfig.load(None, dir=tmp_path, tls=tls, jwt=jwt)
    for name, value in _absolute_files(given).items():
        monkeypatch.setenv(name, value)
    found = BrokerConfig.load(None, dir=tmp_path)
    assert found.tls == TlsSettings(f"{tmp_path}/c.pem", f"{tmp_path}/k.pem", min_version="1.3")
    assert found.jwt == JwtSettings(issuer="i", audience="a", keys=f"{tmp_path}/keys.json")
