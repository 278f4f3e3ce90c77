"""A password and a token are in no plan, UI, event log, log or error."""

from __future__ import annotations

import base64
import subprocess
import sys
import threading
from pathlib import Path

import psutil
import pytest

import isolog
from tests.conftest import ROOT
from tests.secure_brokers import PASSWORD, asking_broker, client_of
from tests.spark.standalone import environment

pytestmark = [pytest.mark.full, pytest.mark.timeout(600)]

SECRET = "hush-hush-4711-say-nothing"
LOG4J = """
rootLogger.level = debug
rootLogger.appenderRef.out.ref = out
appender.out.type = Console
appender.out.name = out
appender.out.target = SYSTEM_ERR
appender.out.layout.type = PatternLayout
appender.out.layout.pattern = %d %p %c: %m%n%ex
"""


def test_no_secret_is_shown_anywhere(tmp_path: Path) -> None:
    with asking_broker(tmp_path, 'log_level = "DEBUG"\n') as broker, client_of(broker) as admin:
        admin.add_user("alice", SECRET)
        for operation, resource in (
            ("all", "topic:t"),
            ("all", "topic:u"),
            ("write", "transaction:*"),
        ):
            admin.add_rule("allow", "alice", operation, resource)
        token = admin.create_token("alice").token
        with isolog.connect(broker.address, user="root", password=PASSWORD) as log:
            for name in ("t", "u", "other"):
                log.create_topic(name)
        profile = tmp_path / "profile.toml"
        profile.write_text(
            f'bootstrap = "{broker.address}"\nuser = "alice"\npassword = "{SECRET}"\n'
        )
        events, checkpoints = tmp_path / "events", tmp_path / "checkpoints"
        events.mkdir()
        (tmp_path / "log4j2.properties").write_text(LOG4J)
        seen: set[str] = set()
        over = threading.Event()
        watcher = threading.Thread(target=_watch_commands, args=(seen, over))
        watcher.start()
        done = subprocess.run(
            [
                str(Path(sys.executable).with_name("spark-submit")),
                "--master=local[2]",
                "--conf=spark.eventLog.enabled=true",
                f"--conf=spark.eventLog.dir={events}",
                f"--conf=spark.sql.warehouse.dir={tmp_path / 'warehouse'}",
                f"--driver-java-options=-Dlog4j2.configurationFile={tmp_path}/log4j2.properties",
                str(ROOT / "tests" / "spark" / "secret_driver.py"),
                broker.address,
                str(checkpoints),
            ],
            cwd=tmp_path,
            env=environment(
                A_PASSWORD=SECRET,
                A_TOKEN=token,
                A_PROFILE=str(profile),
                PYTHONPATH=str(ROOT),
                PYSPARK_PYTHON=sys.executable,
                PYSPARK_DRIVER_PYTHON=sys.executable,
            ),
            capture_output=True,
            timeout=500,
            check=False,
        )
        over.set()
        watcher.join()
        told = {"what the driver and its tasks said": done.stdout + done.stderr}
        told["the commands of processes"] = "\n".join(seen).encode()
        told["what the broker said"] = broker.log_text().encode()
        told["the audit log"] = (broker.directory / "audit.log").read_bytes()
        for folder in (events, checkpoints, tmp_path / "warehouse"):
            for file in folder.rglob("*"):
                if file.is_file():
                    told[str(file.relative_to(tmp_path))] = file.read_bytes()
    said = done.stdout.decode()
    for way in ("password", "token", "profile"):
        for act in ("write", "read", "stream", "table"):  # a table is for the profile alone
            assert f"done: {way} {act}" in said, done.stderr[-5000:].decode()
        assert f"failed: {way} forbidden" in said
        assert f"failed: {way} misspelt" in said
    assert "failed: wrong password" in said
    assert any("events" in name for name in told)
    found = {
        f"{place}: {line[:400]!r}"
        for place, data in told.items()
        for line in data.splitlines()
        for secret in (SECRET, token, token.split("_", 2)[2])
        for form in (secret.encode(), base64.b64encode(secret.encode()).rstrip(b"=")[:-1])
        if form in line
    }
    assert not found, "\n".join(sorted(found))


def _watch_commands(seen: set[str], over: threading.Event) -> None:
    while not over.wait(0.2):
        for process in psutil.process_iter(["cmdline"]):
            seen.add(" ".join(process.info["cmdline"] or []))
