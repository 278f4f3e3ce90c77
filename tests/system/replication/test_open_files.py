"""A broker at its limit of open files hands over to another in-sync replica."""

from __future__ import annotations

import os
import resource

import pytest

from tests.support import NUMBERS, eventually, numbers, open_files
from tests.system.replication.clusters import WAIT_S, await_in_sync, read, with_retries

pytestmark = pytest.mark.chaos


def leave_only_spares(pid: int) -> None:
    """Lower the limit of the process to its unused descriptors and those opened before them."""
    files = open_files(pid)
    spares = [number for number, target in files.items() if number > 2 and target == os.devnull]
    _, hard = resource.prlimit(pid, resource.RLIMIT_NOFILE)
    resource.prlimit(pid, resource.RLIMIT_NOFILE, (max(spares) + 1, hard))


@pytest.mark.full  # one process: tests/storage/disk/test_descriptors.py
def test_leader_without_descriptors_logs_its_limit_and_hands_over(cluster, log, topic):
    log.create_topic(topic, 1, 3, schema=NUMBERS, config={"segment.entries": 16})
    await_in_sync(log, topic)
    leader = cluster.leader(topic)
    leave_only_spares(cluster.broker(leader).pid)

    def append(number: int) -> None:
        with log.producer() as producer:
            producer.append(topic, numbers(number, 1), 0).result()

    for number in range(40):  # the second segment needs new files
        with_retries(lambda number=number: append(number))
    assert cluster.leader(topic) != leader
    # The last records are acknowledged before they are replicated.
    eventually(lambda: read(log, topic) == list(range(40)), WAIT_S)
    said = cluster.broker(leader).log_text
    eventually(lambda: "another in-sync replica leads now" in said(), WAIT_S)
    assert "as many open files as its limit allows" in said()
    cluster.restart(leader)
    await_in_sync(log, topic)
