"""A client over TCP needs no call that Windows lacks, and a broker refuses in one line."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

from tests.house.test_layers import ROOT
from tests.house.test_operating_system import missing_on
from tests.support import BrokerProcess

START = """
import json, sys
from tests.windows import become_windows
become_windows(set(json.load(sys.stdin)))
address, folder = sys.argv[1:]
"""

CLIENT = """
import asyncio
import isolog
from isolog import aio

with isolog.connect(address) as log:
    log.create_topic("flights", partitions=2)
    with log.producer() as producer:
        for number in range(100):
            producer.send("flights", b"%d" % number)
    with log.producer(transactional_id="daily") as producer, producer.transaction():
        producer.send("flights", b"committed")
    print(log.read("flights").num_rows)
    with log.consumer("flights", start="earliest", group="readers") as consumer:
        print(next(iter(consumer.records(until="latest"))).offset)


async def read():
    async with await aio.connect(address) as log:
        return (await log.read("flights")).num_rows

print(asyncio.run(read()))
"""

PATH = """
import isolog
from pathlib import Path

try:
    isolog.connect(path=folder).read("t")
except isolog.errors.InvalidConfig as error:
    print(error.message, "|", error.hint)
print(Path(folder).exists())
"""

COMMANDS = """
from spark_stream.cli.app import execute

print(execute(["topic", "create", "greetings", "--bootstrap", address]))
print(execute(["topic", "list", "--bootstrap", address]))
print(execute(["consume", "greetings", "--bootstrap", address, "--to", "latest"]))
print(execute(["broker", "start", "--dir", folder]))
print(execute(["broker", "start", "--dir", folder, "--daemon"]))
print(execute(["broker", "stop", "--dir", folder]))
"""

NEEDS = (
    "this system cannot run a broker, because it has no file locks {}On Windows run isolog in WSL,"
    " or connect to a broker by its address (bootstrap)."
)


def run(program: str, address: str, folder: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-W", "error", "-c", START + program, address, str(folder)],
        input=json.dumps(sorted(missing_on("win32"))),
        env=os.environ | {"ISOLOG_PORTABLE": "1"},
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=100,
    )


def test_a_client_over_tcp_reads_and_writes(shared: BrokerProcess, tmp_path: Path) -> None:
    done = run(CLIENT, shared.address, tmp_path / "log")
    assert done.stderr == ""
    assert done.stdout.split() == ["101", "0", "101"]


def test_a_log_by_path_is_refused_in_one_line(tmp_path: Path) -> None:
    done = run(PATH, "", tmp_path / "log")
    assert done.stderr == ""
    assert done.stdout.splitlines() == [NEEDS.format("| "), "False"]


def test_commands_reach_a_broker_over_tcp_and_start_none(
    shared: BrokerProcess, tmp_path: Path
) -> None:
    folder = tmp_path / "log"
    folder.mkdir()
    done = run(COMMANDS, shared.address, folder)
    codes = [line for line in done.stdout.splitlines() if line.isdecimal()]
    assert codes == ["0", "0", "0", "1", "1", "1"]
    refused = [line for line in done.stderr.splitlines() if line.startswith("error: ")]
    assert refused[:2] == [f"error: {NEEDS.format('(')})"] * 2
    assert "Traceback" not in done.stderr
    assert list(folder.iterdir()) == []
