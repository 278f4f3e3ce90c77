"""How often a broker looks after transactions, whatever a look had to wait for."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from spark_stream.broker.driver import Driver
from spark_stream.broker.host import Host
from spark_stream.broker.step_table import StepTable
from spark_stream.broker.transactions import TransactionDesk
from spark_stream.cluster.brokers import Brokers, RegisteredBroker
from spark_stream.cluster.lease_files import LeaseFiles
from spark_stream.cluster.leases import Leases
from spark_stream.cluster.sqlite import SqliteStore
from spark_stream.cluster.topics import Topic, encode
from spark_stream.consistency.transactions import Joined
from spark_stream.errors import LeaderUnavailable
from spark_stream.scripts import deciding
from spark_stream.scripts.steps import ListRecords, PartitionStep, Script
from spark_stream.storage.directory import LogDirectory
from spark_stream.storage.settings import LogSettings
from tests.clocks import FakeClock
from tests.support import NUMBERS

US = 1_000_000


class StoppedPeers:
    """Another broker that takes calls and does not answer: each takes the caller's patience."""

    def __init__(self, clock: FakeClock) -> None:
        self.clock = clock

    def run_steps(self, broker_id: str, steps: Sequence[PartitionStep]) -> list[Any]:
        self.clock.pass_us(10 * US)
        raise LeaderUnavailable(f"broker {broker_id} does not answer", leader=broker_id)


class Looking:
    """A broker's transactions on a clock that the test moves."""

    def __init__(self, path: Path) -> None:
        self.clock = FakeClock()
        self.store = SqliteStore(path / "metadata.sqlite")
        self.host = Host(LogDirectory(path, "c", "here"), self.store, LogSettings(), self.clock)
        self.table = StepTable(self.store, self.host)
        self.driver = Driver(self.table, StoppedPeers(self.clock))
        leases = Leases(LeaseFiles(path / "leases"), self.clock)
        self.desk = TransactionDesk(
            self.driver, self.host, self.clock, "here", leases, adopts=False
        )

    def begin(self, name: str, timeout_ms: int) -> Any:
        finished, now = self.desk.finished, self.desk.now_ms()
        self.desk.run(deciding.take_over(finished, name, "instance", timeout_ms, now))
        return self.desk.run(deciding.begin(finished, name, "instance", -1, "here", now))

    def state(self, name: str) -> str:
        return str(self.desk.run(deciding.describe(self.desk.finished, name)).state)

    def sweep_slowly(self, script: Script[None], stopped_s: int) -> None:
        """Drives a sweep; the process is stopped for so long while it looks."""
        answer: Any = None
        try:
            while True:
                step = script.send(answer)
                answer = self.table.carry_out(step)
                if isinstance(step, ListRecords):
                    self.clock.pass_us(stopped_s * US)
        except StopIteration:
            return


@pytest.fixture
def looking(tmp_path: Path):
    found = Looking(tmp_path)
    yield found
    found.host.close()
    found.store.close()


def expires_in_time(looking: Looking) -> None:
    """A transaction of one second is aborted within a minute of sweeps."""
    looking.begin("short", 1_000)
    for _ in range(60):
        looking.clock.pass_us(US)
        looking.desk.sweep()
    assert looking.state("short") == "aborted"


def test_a_broker_that_was_stopped_in_a_sweep_looks_again_soon(looking: Looking):
    looking.sweep_slowly(looking.desk.sweeping(), stopped_s=600)
    expires_in_time(looking)


def test_waiting_for_another_broker_lengthens_no_rest(looking: Looking):
    """A transaction that cannot be finished now is tried again; others are looked after."""
    led = Topic("far", "id", NUMBERS, 1, {}, leader="elsewhere")
    looking.store.put("topics/far", encode(led), 0)
    Brokers(looking.store).register(RegisteredBroker("elsewhere", "127.0.0.1:1", "i", "1"))
    found = looking.begin("far", 60_000)
    join = deciding.join(
        "far", found.number, found.producer_id, found.epoch, Joined("far", "id", 0)
    )
    looking.desk.run(join)
    with pytest.raises(LeaderUnavailable):
        looking.desk.run(deciding.abort(looking.desk.finished, "far", "instance", found.number))
    looking.desk.sweep()
    assert looking.state("far") == "aborting"
    expires_in_time(looking)
