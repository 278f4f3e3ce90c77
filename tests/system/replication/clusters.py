"""Helpers of replication tests: repair a cluster, append, read, and compare the copies."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

import isolog
from isolog.errors import IsologError
from isolog.testing import LocalCluster
from spark_stream.consistency.entries import ENTRY
from spark_stream.storage.format.codec import first_broken_batch, intact_entries
from spark_stream.storage.format.stored import digest
from spark_stream.storage.log.segment_files import base_of, whole_rows
from spark_stream.wire.topic_messages import PartitionDescription
from tests.support import eventually, numbers

# The lease of a paused broker expires after this time. With the default most tests would take twice
# as long.
CONF: dict[str, Any] = {"lease_seconds": 1.5}
LEVELS = ("read_uncommitted", "read_replicated", "read_committed")
WAIT_S = 30.0


def restore(cluster: LocalCluster) -> None:
    """Start or resume each broker, and heal all partitions of the network."""
    cluster.heal()
    for number, broker in cluster.brokers.items():
        if broker.alive:
            cluster.resume(number)
        else:
            cluster.restart(number)


def with_retries(call: Callable[[], Any]) -> Any:
    """Repeat the call while its error is retriable. Return its result."""
    found: list[Any] = []

    def tried() -> bool:
        try:
            found.append(call())
        except IsologError as error:
            if not error.retriable:
                raise
            return False
        return True

    eventually(tried, WAIT_S)
    return found[0]


def partition(log: isolog.Log, topic: str, number: int = 0) -> PartitionDescription:
    """Return the current description of the partition."""
    return with_retries(lambda: log.describe(topic)).partitions[number]


def await_in_sync(log: isolog.Log, topic: str, count: int = 3) -> None:
    """Wait until each partition has ``count`` in-sync replicas with all of its records."""

    def whole() -> bool:
        found = with_retries(lambda: log.describe(topic)).partitions
        return all(
            each.leader is not None
            and each.error is None
            and len(each.isr) == count
            and each.high_watermark == each.log_end_offset
            for each in found
        )

    eventually(whole, WAIT_S)


def append_replicated(log: isolog.Log, topic: str, first: int, count: int, number: int = 0) -> None:
    """Append ``count`` numbers as one batch, and wait until they are below the high watermark."""
    with log.producer(isolation="read_committed") as producer:
        producer.append(topic, numbers(first, count), number).result(WAIT_S)


def read(log: isolog.Log, topic: str, isolation: str = "read_committed") -> list[int]:
    """Return the numbers visible at the isolation level, partition by partition."""
    table = with_retries(lambda: log.read(topic, isolation=isolation))
    return [int(each) for each in table.column("n").to_pylist()]


def visible_counts(log: isolog.Log, topic: str) -> Mapping[str, int]:
    """Return the count of visible numbers at each of three isolation levels."""
    return {level: len(read(log, topic, level)) for level in LEVELS}


# -- copies ----------------------------------------------------------------------------------------


def folders(cluster: LocalCluster, topic: str, number: int = 0) -> dict[int, Path]:
    """Return the existing folders of the partition, by the number of their broker."""
    found = {}
    for broker in cluster.brokers.values():
        for path in (broker.directory / "topics" / topic).glob(f"*/{number}"):
            found[broker.number] = path
    return found


def entries(folder: Path) -> np.ndarray:
    """Return the complete entries of all segments in a partition's folder."""
    files = sorted(folder.glob("*.entries"), key=lambda path: base_of(path.name))
    tables = [whole_rows(pa.py_buffer(path.read_bytes())) for path in files]
    return np.concatenate([np.empty(0, ENTRY), *tables])


def fingerprint(folder: Path) -> tuple[int, str]:
    """Check both checksums of each entry. Return the first entry's index and the digest of all."""
    for path in folder.glob("*.entries"):
        rows = whole_rows(pa.py_buffer(path.read_bytes()))
        data = pa.py_buffer(path.with_suffix(".arrow").read_bytes())
        assert intact_entries(rows) == len(rows), path
        assert first_broken_batch(rows, data, 0) == len(rows), path
    rows = entries(folder)
    return (int(rows[0]["entry_index"]) if len(rows) else 0), digest([rows])


def await_equal_copies(cluster: LocalCluster, topic: str, number: int = 0, count: int = 3) -> None:
    """Wait until ``count`` copies have the same entries, and check these against their bytes."""

    def equal() -> bool:
        found = folders(cluster, topic, number)
        return len(found) == count and len({digest([entries(f)]) for f in found.values()}) == 1

    eventually(equal, WAIT_S)
    found = {fingerprint(folder) for folder in folders(cluster, topic, number).values()}
    assert len(found) == 1, found
