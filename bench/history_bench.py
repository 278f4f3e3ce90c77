"""A partition with a long history of transactions: the cost of its open and of reads."""

from __future__ import annotations

import tempfile
import time
from pathlib import Path

import pyarrow as pa

from bench.clock import now
from bench.records import values
from bench.results import Results
from spark_stream.broker.partition.partition import Partition
from spark_stream.consistency.entries import Kind
from spark_stream.consistency.ids import LeaderEpoch
from spark_stream.consistency.partition.producers import Stamp
from spark_stream.environment import SystemClock
from spark_stream.storage.format.log_format import LogFormat
from spark_stream.storage.log.log import PartitionLog

_EPOCH = LeaderEpoch(0)


def run(results: Results, transactions: int) -> None:
    """A log of one-row transactions, opened and read, next to one of as many plain batches."""
    batch = pa.record_batch({"value": values(1)})
    log_format = LogFormat(batch.schema)
    moment = time.time_ns() // 1000
    with tempfile.TemporaryDirectory(prefix="isolog-bench-") as folder:
        places = {}
        for name in ("plain", "transactions"):
            places[name] = Path(folder) / name
            made = PartitionLog.open(places[name], log_format)
            prepared = log_format.prepare(batch, moment)
            for number in range(transactions):
                epoch, producer = number % 32_767, number // 32_767
                if name == "plain":
                    made.append(prepared, _EPOCH, moment)
                    continue
                made.append(prepared, _EPOCH, moment, Stamp(producer, epoch, 0, number))
                made.mark(Kind.COMMIT, producer, epoch, number, _EPOCH, moment)
            made.close()
        took, rates = {}, {}
        for name, place in places.items():
            started = now()
            opened = PartitionLog.open(place, log_format)
            Partition("t", "id", 0, opened, 86_400_000_000, SystemClock())
            took[name] = now() - started
            rates[name] = _whole(opened, committed=name == "transactions")
            opened.close()
    shown = f"{transactions:,} one-row"
    results.add(
        f"open of a partition, {shown} transactions",
        "ms",
        measured=took["transactions"] * 1e3,
        ceiling=took["plain"] * 1e3,
        note="ceiling: plain batches, half the entries",
    )
    results.add(
        f"read of {shown} transactions, read_committed",
        "rows/s",
        measured=rates["transactions"],
        ceiling=rates["plain"],
        note="ceiling: plain batches",
    )


def _whole(log: PartitionLog, *, committed: bool) -> float:
    started = now()
    chunks = log.read(log.start.offset, log.end.offset, committed=committed)
    rows = sum(chunk.batch.num_rows for chunk in chunks)
    return rows / (now() - started)
