"""One-row appends of one principal beside another one that writes as much as possible.

The greedy one is a separate process, with large batches.
"""

from __future__ import annotations

import statistics
import subprocess
import sys
import time
from pathlib import Path

import pyarrow as pa

import spark_stream as isolog
from bench.clock import now
from bench.records import values
from bench.results import Results
from tests.secure_brokers import PASSWORD, as_, asking_broker, client_of

QUOTA = 20_000_000
ROUNDS = 4
SECONDS = 4.0
_BATCH_BYTES = 1 << 20
_SETTLES_S = 3.0  # until the greedy one has used up its burst


def run(folder: Path, results: Results) -> None:
    """The p50 and p99 alone, beside the greedy one, and beside it with a quota, in turns."""
    took: dict[str, list[list[float]]] = {"alone": [], "no quota": [], "quota": []}
    written: dict[str, list[float]] = {"no quota": [], "quota": []}
    folder.mkdir(parents=True)
    with asking_broker(folder) as broker, client_of(broker) as admin:
        for user in ("greedy", "modest"):
            admin.add_user(user, PASSWORD)
            admin.add_rule("allow", user, "all", "topic:*")
        with as_(broker, "modest") as log:
            for topic in ("large", "small"):
                log.create_topic(topic, config={"retention.bytes": str(1 << 30)})
            for _ in range(ROUNDS):
                took["alone"].append(_append_ms(log))
                for name, rate in (("no quota", None), ("quota", QUOTA)):
                    admin.set_quota("greedy", write_bytes_per_s=rate)
                    greedy = subprocess.Popen(
                        [sys.executable, "-m", "bench.quota_bench", broker.address]
                    )
                    time.sleep(_SETTLES_S)
                    before, begun = _end(log), now()
                    took[name].append(_append_ms(log))
                    rows = _end(log) - before
                    written[name].append(rows * _BATCH_BYTES / (now() - begun) / 1e6)
                    greedy.kill()
                    greedy.wait()
                    time.sleep(_SETTLES_S)
    for part, at in (("p50", 50), ("p99", 99)):
        found = {
            name: [statistics.quantiles(each, n=100)[at - 1] for each in rounds]
            for name, rounds in took.items()
        }
        alone = statistics.median(found["alone"])
        results.add(f"append, alone, {part}", "ms", measured=alone)
        for name in written:
            results.add(
                f"append beside a greedy one, {name}, {part}",
                "ms",
                measured=statistics.median(found[name]),
                ceiling=alone,
                note=f"it writes {statistics.median(written[name]):.0f} MB/s",
            )


def _end(log: isolog.Log) -> int:
    found = log.describe("large").partitions[0].log_end_offset
    assert found is not None
    return found


def _append_ms(log: isolog.Log) -> list[float]:
    took = []
    one = pa.record_batch({"value": values(1)})
    with log.producer() as producer:
        producer.append("small", one, partition=0).result()
        until = now() + SECONDS
        while (started := now()) < until:
            producer.append("small", one, partition=0).result()
            took.append((now() - started) * 1e3)
    return took


if __name__ == "__main__":
    batch = pa.record_batch({"value": pa.array([bytes(_BATCH_BYTES)], pa.binary())})
    mine = isolog.connect(sys.argv[1], user="greedy", password=PASSWORD)
    endless = mine.producer()
    while True:
        endless.append("large", batch, partition=0)
