"""The stream of replication between two processes: catch-up, latency, and its cost at rest.

The processes do nothing but replicate (``tests/broker/replication/node.py``): logs on the disk, the
streams of a broker, and no clients. So the figures are those of the stream and of the logs under
it.
"""

from __future__ import annotations

import json
import time
from pathlib import Path

from bench.results import Results
from tests.broker.replication.processes import NodeProcess

MIB = 1 << 20
BEHIND_MIB = 512
ROUNDS = 2_000
PARTITIONS = 1_000
RECORD_BYTES = 100


def run(place: Path, results: Results, idle_s: float) -> None:
    """``idle_s``: the time of measurement of idle processes."""
    with _Pair(place / "two", 3) as (leader, follower):
        for number in (0, 1):
            leader.ask("load", number, MIB, BEHIND_MIB // 2)
        leader.ask("load", 2, RECORD_BYTES, 1)
        began = time.perf_counter()
        follower.follow(leader)
        live = _milliseconds(leader, 200)
        for number in (0, 1):
            leader.ask("append", number, MIB, 1)
        rate = BEHIND_MIB * MIB / (time.perf_counter() - began) / 1e6
        results.add("replication, catch-up from far behind", "MB/s", measured=rate)
        results.add("replicated append during the catch-up, p50", "ms", measured=live[100])
        took = _milliseconds(leader, ROUNDS)
        results.add("replicated append of one row, p50", "ms", measured=took[ROUNDS // 2])
        results.add("replicated append of one row, p99", "ms", measured=took[ROUNDS * 99 // 100])
    with _Pair(place / "many", PARTITIONS) as (leader, follower):
        began = time.perf_counter()
        follower.follow(leader)
        leader.ask("await-sessions")
        took_s = time.perf_counter() - began
        results.add(f"{PARTITIONS:,} partitions followed", "s", measured=took_s)
        before = leader.cpu(), follower.cpu()
        time.sleep(idle_s)
        for name, process, used in (
            ("leader", leader, before[0]),
            ("follower", follower, before[1]),
        ):
            share = (process.cpu() - used) / idle_s * 100
            what = f"{PARTITIONS:,} replicated partitions at rest, {name}"
            results.add(what, "% of a core", measured=share)


def _milliseconds(leader: NodeProcess, times: int) -> list[float]:
    """The sorted times of appends until the high watermark passed them."""
    return sorted(took * 1e3 for took in json.loads(leader.ask("latency", 2, times)))


class _Pair:
    """A leader of this many partitions, and a process that may follow it."""

    def __init__(self, place: Path, partitions: int) -> None:
        self._leader = NodeProcess("a", place / "a", partitions, beat_s=1.0, death_s=3.0)
        self._follower = NodeProcess("b", place / "b", 0, beat_s=1.0, death_s=3.0)

    def __enter__(self) -> tuple[NodeProcess, NodeProcess]:
        return self._leader, self._follower

    def __exit__(self, *_: object) -> None:
        self._leader.__exit__()
        self._follower.__exit__()
