"""Three brokers with TLS and rules, and two Spark executors, during changes of all of these."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, NoReturn

import psutil
import pytest

import isolog
from isolog.errors import Unauthenticated, UnknownOutcome
from spark_stream.client.administration import AccessClient
from spark_stream.client.connecting.access import access_of
from spark_stream.client.connecting.connection import ClusterConnection
from tests.certificates import HERE, Files, serial_of
from tests.conftest import ROOT
from tests.secure_brokers import PASSWORD, secure_brokers
from tests.spark.secure_driver import ROWS_PER_BATCH
from tests.spark.standalone import environment
from tests.support import NUMBERS, BrokerProcess, end_process, eventually, values

pytestmark = [pytest.mark.full, pytest.mark.timeout(600)]

SECRET = "of the job, which says it"
IDS = ("1", "2", "3")
LONG_S = 120.0


@contextmanager
def driver(folder: Path, *options: dict[str, str]) -> Iterator[subprocess.Popen[bytes]]:
    """The driver of the streams. It is ended with all that it has started."""
    (folder / "options.json").write_text(json.dumps(options))
    with (folder / "driver.log").open("wb") as said:
        process = subprocess.Popen(
            [sys.executable, "-m", "tests.spark.secure_driver", str(folder)],
            cwd=folder,
            env=environment(PYTHONPATH=str(ROOT), PYSPARK_PYTHON=sys.executable),
            stdin=subprocess.DEVNULL,
            stdout=said,
            stderr=said,
        )
    try:
        yield process
    finally:
        if process.poll() is None:
            started = psutil.Process(process.pid).children(recursive=True)
            process.kill()
            for each in started:
                end_process(each.pid)
        process.wait()


def audited(brokers: list[BrokerProcess]) -> list[dict[str, Any]]:
    """Return the refusals in the brokers' audit logs."""
    files = [each.directory / "audit.log" for each in brokers]
    lines = [line for file in files if file.exists() for line in file.read_text().splitlines()]
    return [each for each in map(json.loads, lines) if each["outcome"] != "done"]


def test_certificates_a_leader_and_a_token_change_under_two_streams(tmp_path: Path) -> None:
    """Each record is written once, and only the revoked token is refused."""
    files = Files(tmp_path)
    with ExitStack() as stack:
        brokers = stack.enter_context(secure_brokers(tmp_path, files))
        bootstrap = ",".join(each.address for each in brokers)

        def connect(**credential: str) -> isolog.Log:
            log = isolog.connect(bootstrap, tls_ca=files.ca, timeout=60, **credential)
            return stack.enter_context(log)

        root = connect(user="root", password=PASSWORD)
        given = {"user": "root", "password": PASSWORD, "tls.ca": files.ca}
        control = ClusterConnection(bootstrap, access=access_of(given, {}))
        stack.callback(control.close)
        admin = AccessClient(control)
        admin.add_user("etl", SECRET)
        admin.add_user("gauge", SECRET)
        for who, operation, resource in (
            ("etl", "all", "topic:t"),
            ("etl", "all", "topic:u"),
            ("etl", "write", "transaction:sink/writing"),
            ("etl", "write", "transaction:query/*"),
            ("gauge", "all", "topic:side"),
        ):
            admin.add_rule("allow", who, operation, resource)
        for name in ("t", "u"):
            root.create_topic(name, partitions=2, schema=NUMBERS, replication_factor=3)
        root.create_topic("side", replication_factor=3)
        profile = tmp_path / "profile.toml"
        profile.write_text(
            f'bootstrap = "{bootstrap}"\ntls.ca = "{files.ca}"\nuser = "etl"\n'
            f'password = "{SECRET}"\n'
        )
        token = admin.create_token("gauge")
        gauge = connect(token=token.token)
        producer = stack.enter_context(gauge.producer(isolation="read_committed"))
        consumer = stack.enter_context(gauge.consumer("side", start="earliest"))
        sent = 0

        def exchange() -> None:
            """Write a record with the token, and read it."""
            nonlocal sent
            producer.append("side", values(str(sent))).result(60)
            found = eventually(lambda: consumer.poll(1))
            assert [each.value for each in found] == [str(sent).encode()]
            sent += 1

        def write_on() -> NoReturn:
            nonlocal sent
            while True:
                producer.append("side", values(str(sent))).result(60)
                sent += 1

        def await_more(batches: int = 2) -> None:
            """Wait until both streams have gone on for so many batches."""
            before = counts()
            eventually(lambda: alive() and min(more(before)) >= batches * ROWS_PER_BATCH, LONG_S)
            exchange()

        def counts() -> list[int]:
            return [
                sum(each.last_stable_offset for each in root.describe(name).partitions)
                for name in ("t", "u")
            ]

        def more(before: list[int]) -> list[int]:
            return [now - then for now, then in zip(counts(), before, strict=True)]

        def alive() -> bool:
            said = (tmp_path / "driver.log").read_text(errors="replace")
            assert streams.poll() is None, said[-8000:]
            return True

        here = {"bootstrap": bootstrap, "tls.ca": files.ca, "user": "etl", "password": SECRET}
        here["sinkId"] = "writing"
        streams = stack.enter_context(driver(tmp_path, here, {"profile": str(profile)}))
        await_more()

        doors = [door for each in brokers for door in (each.address, each.peer_address)]
        before = [serial_of(door, files.ca) for door in doors]
        for name in IDS:
            files.issue(name, name, *HERE)
        for door, former in zip(doors, before, strict=True):
            eventually(lambda door=door, former=former: serial_of(door, files.ca) != former)
        await_more()

        leader = root.describe("t").partitions[0].leader
        killed = next(each for each in brokers if each.directory.name == leader)
        killed.kill()
        eventually(lambda: root.describe("t").partitions[0].leader not in (None, leader), LONG_S)
        await_more()
        killed.restart()
        eventually(
            lambda: all(
                set(each.isr) == set(IDS)
                for name in ("t", "u", "side")
                for each in root.describe(name).partitions
            ),
            LONG_S,
        )
        await_more()

        assert audited(brokers) == []
        admin.revoke_token(token.id)
        with pytest.raises((Unauthenticated, UnknownOutcome), match="revoked") as last:
            write_on()
        with pytest.raises(Unauthenticated, match="revoked"):
            eventually(lambda: consumer.poll(1) is None, LONG_S)
        before = counts()
        eventually(lambda: alive() and min(more(before)) >= 2 * ROWS_PER_BATCH, LONG_S)

        (tmp_path / "stop").touch()
        said = (tmp_path / "driver.log").read_text(errors="replace")
        assert streams.wait(LONG_S) == 0, said[-8000:]
        found, copied = (
            sorted(root.read(name, isolation="read_committed")["n"].to_pylist())
            for name in ("t", "u")
        )
        assert found == list(range(len(found)))
        assert copied == found
        aside = root.read("side", isolation="read_committed")["value"].to_pylist()
        if len(aside) > sent:
            assert last.type is UnknownOutcome
            sent += 1
        assert aside == [str(number).encode() for number in range(sent)]
        refused = audited(brokers)
        assert {(each["on"], each["outcome"]) for each in refused} == {
            (token.id, "UNAUTHENTICATED")
        }
