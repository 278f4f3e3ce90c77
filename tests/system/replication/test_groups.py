"""A group of processes over three brokers misses no record after kills of members and brokers."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

import isolog
from spark_stream.wire.consumer_messages import ConsumerDescription
from tests.support import eventually, values

# tests/client/reading/test_group_reader.py is quicker.
pytestmark = [pytest.mark.chaos, pytest.mark.full]

PARTITIONS = 6
SESSION_S = 3.0


@contextmanager
def member(cluster, topic: str, file: Path) -> Iterator[subprocess.Popen[str]]:
    """Start a member process, and kill it at the end."""
    module = "tests.system.replication.member"
    command = [sys.executable, "-m", module, cluster.bootstrap, topic, topic]
    with subprocess.Popen(
        [*command, str(SESSION_S), str(file)], stdout=subprocess.PIPE, text=True
    ) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "member\n"
            yield process
        finally:
            process.kill()


def described(log: isolog.Log, group: str) -> ConsumerDescription:
    [found] = log.describe_consumer(group)
    return found


def is_spread(log: isolog.Log, group: str, members: int) -> bool:
    """Return whether the partitions are spread evenly over this number of members."""
    found = described(log, group)
    counts = [each.partitions for each in found.group.members]
    return counts == [PARTITIONS // members] * members


def write(log: isolog.Log, topic: str, first: int, count: int) -> None:
    with log.producer(isolation="read_committed", timeout_ms=60_000) as producer:
        for number in range(PARTITIONS):
            numbers = range(first + number, first + count * PARTITIONS, PARTITIONS)
            producer.append(topic, values(*map(str, numbers)), number)


def processed(folder: Path) -> set[int]:
    return {
        int(line) for file in folder.iterdir() for line in file.read_text().splitlines() if line
    }


def test_group_processes_every_record_over_kills_and_joins(cluster, topic, tmp_path):
    with ExitStack() as stack, cluster.connect(timeout=60) as log:
        log.create_topic(topic, partitions=PARTITIONS, replication_factor=3)
        first, _, _ = [
            stack.enter_context(member(cluster, topic, tmp_path / f"{number}"))
            for number in range(3)
        ]
        eventually(lambda: is_spread(log, topic, 3))
        before = {each.id for each in described(log, topic).group.members}
        write(log, topic, 0, 100)
        eventually(lambda: processed(tmp_path) == set(range(600)))
        first.kill()
        write(log, topic, 600, 100)
        eventually(lambda: processed(tmp_path) == set(range(1_200)))
        eventually(lambda: is_spread(log, topic, 2))
        assert {each.id for each in described(log, topic).group.members} < before
        stack.enter_context(member(cluster, topic, tmp_path / "3"))
        eventually(lambda: is_spread(log, topic, 3))
        cluster.kill(1)
        write(log, topic, 1_200, 100)
        eventually(lambda: processed(tmp_path) == set(range(1_800)))
        cluster.restart(1)
        eventually(lambda: described(log, topic).lag == 0)
    sizes = [len((tmp_path / f"{number}").read_text().splitlines()) for number in range(4)]
    assert min(sizes) >= 150, sizes
