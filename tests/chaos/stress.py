"""Many threads of one process over a repeatedly cut connection: the process survives.

``python -m tests.chaos.stress --seconds 600`` (``make stress``) runs producers, transactions,
consumers, long polls and reads through a proxy that cuts all connections every 20 to 250 ms, while
the broker is killed, paused and restarted. At the end, the process has released threads, files and
memory, and the log has each acknowledged record once. It prints one line with its events. The exit
code is 0 if all checks passed, else 1. An abort inside gRPC ends it with a signal and a trace.
"""

from __future__ import annotations

import argparse
import faulthandler
import gc
import random
import sys
import tempfile
import threading
import time
from dataclasses import dataclass
from pathlib import Path

import psutil
import pyarrow as pa

from tests.chaos.outcomes import SCHEMA, broken_promises, counts
from tests.chaos.stress_work import Worker, World, follow, look, poll, produce, transact
from tests.client.proxy import Proxy
from tests.support import BrokerProcess, eventually

KINDS = (produce, produce, produce, produce, transact, transact, follow, follow, poll, poll, look)
ENDING_S = 120.0
# The allowance of a process: pools of threads and memory of the libraries.
THREADS_MORE, FILES_MORE, MEMORY_MORE = 24, 8, 150 << 20


@dataclass(frozen=True)
class Resources:
    """The resources of the process."""

    python_threads: int
    threads: int
    files: int
    memory: int

    @classmethod
    def now(cls) -> Resources:
        gc.collect()
        pa.default_memory_pool().release_unused()
        me = psutil.Process()
        memory = me.memory_full_info().uss
        return cls(threading.active_count(), me.num_threads(), me.num_fds(), memory)

    def near(self, before: Resources) -> bool:
        return (
            self.python_threads <= before.python_threads
            and self.threads <= before.threads + THREADS_MORE
            and self.files <= before.files + FILES_MORE
            and self.memory <= before.memory + MEMORY_MORE
        )


class Mishaps:
    """Cuts connections and ends brokers, each on a separate thread, until stopped.

    Every run, even a short one, begins with a restart, a pause and cuts. Later ones are random.
    """

    def __init__(self, broker: BrokerProcess, proxy: Proxy, stop: threading.Event, seed: int):
        self.cuts = self.kills = self.pauses = 0
        self._broker, self._proxy, self._stop = broker, proxy, stop
        self._chance = random.Random(seed)
        self._threads = [threading.Thread(target=each) for each in (self._cut, self._strike)]

    def start(self) -> None:
        for each in self._threads:
            each.start()

    def join(self) -> None:
        for each in self._threads:
            each.join()

    def _cut(self) -> None:
        while True:
            self._proxy.cut()
            self.cuts += 1
            if self._stop.wait(self._chance.uniform(0.02, 0.25)):
                return

    def _strike(self) -> None:
        self._stop.wait(1)  # the workers have begun
        self._restart()
        self._pause()
        while not self._stop.wait(self._chance.uniform(2, 8)):
            if self._chance.random() < 0.7:
                self._restart()
            else:
                self._pause()

    def _restart(self) -> None:
        if self._chance.random() < 0.5:
            self._broker.kill()
        else:
            self._broker.terminate()
        self._stop.wait(self._chance.uniform(0, 1))
        self._broker.restart()
        self.kills += 1

    def _pause(self) -> None:
        self._broker.pause()
        self._stop.wait(self._chance.uniform(0.5, 6))
        self._broker.resume()
        self.pauses += 1


def run(folder: Path, seconds: float, seed: int) -> int:
    with BrokerProcess(folder / "log") as broker:
        with broker.connect() as log:
            log.create_topic("t", partitions=4, schema=SCHEMA)
            log.create_topic("quiet", partitions=2)
        warm = World(broker.address)
        for number, kind in enumerate(KINDS):  # one-time resources of libraries are not a leak
            Worker(warm, number, kind, seed).round()
        before = Resources.now()
        with Proxy(broker.address) as proxy:
            world = World(proxy.address)
            workers = [Worker(world, 100 + n, kind, seed) for n, kind in enumerate(KINDS)]
            calm = threading.Event()
            mishaps = Mishaps(broker, proxy, calm, seed)
            mishaps.start()
            for each in workers:
                each.start()
            time.sleep(seconds)  # the length of the run, not a wait
            calm.set()
            mishaps.join()
            world.stop.set()
            deadline = time.monotonic() + ENDING_S
            for each in workers:
                each.join(max(0.0, deadline - time.monotonic()))
            stuck = [each.name for each in workers if each.is_alive()]
        if stuck:
            faulthandler.dump_traceback()
        after = _settled(before)
        with broker.connect() as log:
            eventually(lambda: all(p.open_transactions == 0 for p in log.describe("t").partitions))
            columns = SCHEMA.names[:3]
            table = log.read("t", isolation="read_committed", columns=columns)
        outcomes = warm.outcomes | world.outcomes
        broken = [*warm.surprises, *world.surprises, *broken_promises(table, outcomes)]
        broken += [f"{name} is stuck" for name in stuck]
        if not after.near(before):
            names = sorted(each.name for each in threading.enumerate())
            broken.append(f"not given back: {before} is now {after}: {names}")
    unknown, acknowledged, absent = counts(outcomes)
    rounds = ", ".join(f"{count} {what}" for what, count in sorted(world.rounds.items()))
    print(
        f"stress {seconds:g} s, seed {seed}: rounds {rounds}; {mishaps.cuts} cuts,"
        f" {mishaps.kills} restarts, {mishaps.pauses} pauses; {table.num_rows} records; batches"
        f" {acknowledged} acknowledged, {unknown} unknown, {absent} told absent; threads"
        f" {before.threads} -> {after.threads}, files {before.files} -> {after.files}, memory"
        f" {before.memory >> 20} -> {after.memory >> 20} MiB; {len(broken)} broken",
        flush=True,
    )
    for each in broken[:20]:
        print(each, file=sys.stderr)
    return 1 if broken else 0


def _settled(before: Resources) -> Resources:
    """Return the resources after the release, which takes a moment for threads."""
    deadline = time.monotonic() + 15
    while True:
        after = Resources.now()
        if after.near(before) or time.monotonic() > deadline:
            return after
        time.sleep(0.1)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--seed", type=int, default=random.randrange(1 << 32))
    options = parser.parse_args()
    faulthandler.enable()
    faulthandler.dump_traceback_later(options.seconds + 2 * ENDING_S, exit=True)
    with tempfile.TemporaryDirectory(prefix="isolog-stress-") as folder:
        code = run(Path(folder), options.seconds, options.seed)
    faulthandler.cancel_dump_traceback_later()
    return code


if __name__ == "__main__":
    sys.exit(main())
