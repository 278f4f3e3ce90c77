"""A stress test of replication streams under cuts, kills and pauses.

``python -m tests.broker.replication.stress --seconds 600`` replicates both ways between this
process and another one, through proxies that cut all connections every few milliseconds. The other
process is killed, or paused for longer than the timeout of a silent peer, and this one follows and
unfollows partitions. At the end all replicas must equal their leaders' logs, and this process must
have released its threads and files. The test prints one line of counts. Its exit code is 0 for
success and 1 for a failure. An abort inside gRPC ends it with a signal and a trace.
"""

from __future__ import annotations

import argparse
import faulthandler
import os
import random
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path

import psutil

from spark_stream.cluster.partitions import PartitionId
from spark_stream.storage.disk.descriptors import THREAD_NAME
from spark_stream.transport.client import client_loop
from tests.broker.replication.nodes import QUICK, Node
from tests.broker.replication.partitions import Copy, DiskLog, LeadPartition
from tests.broker.replication.processes import NodeProcess
from tests.client.proxy import Proxy
from tests.support import eventually

PARTITIONS = 4
ENDING_S = 60.0
THREADS_MORE, FILES_MORE = 24, 8  # pools that gRPC holds on to


class World:
    """The node of this process, the other process, and a proxy in front of each."""

    def __init__(self, folder: Path, seed: int) -> None:
        self.chance = random.Random(seed)
        self.cuts = self.kills = self.pauses = self.moves = 0
        self.stop = threading.Event()
        self.surprises: list[str] = []
        self.lead = {
            PartitionId("x", number): LeadPartition(log=DiskLog(folder / f"x-{number}"))
            for number in range(PARTITIONS)
        }
        self.copies = {
            key: Copy(key, log=DiskLog(folder / f"y-{key.number}"))
            for key in (PartitionId("y", number) for number in range(PARTITIONS))
        }
        self.node = Node("x", self.lead)
        self.peer = NodeProcess("y", folder / "peer", PARTITIONS)
        self.to_peer = Proxy(self.peer.address)
        self.to_node = Proxy(self.node.address)
        self.asking = threading.Lock()  # the peer answers one command at a time
        self.node.addresses["y"] = self.to_peer.address
        for copy in self.copies.values():
            self.node.fetchers.follow("y", copy)
        self.tell_peer()

    def tell_peer(self) -> None:
        self.peer.ask("peer", "x", self.to_node.address, PARTITIONS)

    def cut(self) -> None:
        self.chance.choice((self.to_peer, self.to_node)).cut()
        self.cuts += 1
        self.stop.wait(self.chance.choice((0.002, 0.02, 0.2)) * self.chance.random())

    def strike(self) -> None:
        """Kill and restart the other process, or pause it for a while."""
        with self.asking:
            # Every run has one of each. Later strikes are random.
            if not self.kills or (self.pauses and self.chance.random() < 0.5):
                self.peer.kill()
                self.peer.start()
                self.to_peer.turn_to(self.peer.address)
                self.tell_peer()
                self.kills += 1
            else:
                self.peer.pause()
                self.stop.wait(self.chance.choice((0.1, 3 * QUICK.death_s)))
                self.peer.signal(signal.SIGCONT)
                self.pauses += 1
        self.stop.wait(self.chance.uniform(0.2, 2))

    def load(self) -> None:
        """Append on both sides, sometimes a large batch."""
        number = self.chance.randrange(PARTITIONS)
        size = 2 << 20 if self.chance.random() < 0.02 else self.chance.randrange(3000)
        self.lead[PartitionId("x", number)].append(os.urandom(size), 5)
        with self.asking:
            self.peer.ask("load", number, size, 5)
        self.stop.wait(0.005)

    def move(self) -> None:
        """Stop following a partition, and then follow it again."""
        copy = self.chance.choice(list(self.copies.values()))
        self.node.fetchers.unfollow(copy.key)
        self.stop.wait(self.chance.random() / 10)
        self.node.fetchers.follow("y", copy)
        self.moves += 1
        self.stop.wait(self.chance.random() / 5)

    def until_stopped(self, step: Callable[[], None]) -> None:
        while not self.stop.is_set():
            try:
                step()
            except Exception as error:
                self.surprises.append(f"{step.__name__}: {error!r}")
                return

    def are_equal(self) -> bool:
        lead, copies = self.peer.digests()
        mine = [partition.log.digest() for partition in self.lead.values()]
        return mine == copies and lead == [copy.log.digest() for copy in self.copies.values()]

    def entries(self) -> int:
        return sum(each.log.end for each in (*self.lead.values(), *self.copies.values()))

    def close(self) -> None:
        self.node.stop()
        self.peer.__exit__()
        self.to_peer.__exit__(None, None, None)
        self.to_node.__exit__(None, None, None)


def threads_of_the_run() -> list[str]:
    """Return the names of all Python threads but the permanent one that begins writes."""
    return sorted(each.name for each in threading.enumerate() if each.name != THREAD_NAME)


def run(folder: Path, seconds: float, seed: int) -> int:
    """Run the test. Return the exit code."""
    me = psutil.Process()
    client_loop()  # permanent: all connections of a process share it
    before = me.num_threads(), me.num_fds(), len(threads_of_the_run())
    world = World(folder, seed)
    steps = (world.cut, world.strike, world.load, world.move)
    threads = [threading.Thread(target=world.until_stopped, args=(step,)) for step in steps]
    for each in threads:
        each.start()
    world.stop.wait(seconds)
    eventually(lambda: world.stop.is_set() or (world.kills and world.pauses), ENDING_S)
    world.stop.set()
    for each in threads:
        each.join(ENDING_S)
    broken = list(world.surprises)
    try:
        eventually(world.are_equal, ENDING_S)
    except AssertionError as error:
        broken.append(f"the copies differ: {error}")
    if any(copy.most_entered > 1 for copy in world.copies.values()):
        broken.append("two threads were in one copy")
    entries = world.entries()
    began = time.monotonic()
    world.close()
    took = time.monotonic() - began
    try:
        eventually(lambda: len(threads_of_the_run()) <= before[2], 30)
        eventually(lambda: me.num_threads() <= before[0] + THREADS_MORE, 30)
        eventually(lambda: me.num_fds() <= before[1] + FILES_MORE + 8 * PARTITIONS, 30)
    except AssertionError:
        held = me.num_threads(), me.num_fds(), threads_of_the_run()
        broken.append(f"not given back: {before} is now {held}")
    if "Fatal Python error" in world.peer.log_text():
        broken.append(f"the other process has aborted: {world.peer.log_text()[-3000:]}")
    print(
        f"stress {seconds:g} s, seed {seed}: {world.cuts} cuts, {world.kills} kills,"
        f" {world.pauses} pauses, {world.moves} moves, {entries} entries; ended in {took:.1f} s;"
        f" {len(broken)} broken",
        flush=True,
    )
    for each in broken[:20]:
        print(each, file=sys.stderr)
    return 1 if broken else 0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--seed", type=int, default=random.randrange(1 << 32))
    options = parser.parse_args()
    faulthandler.enable()
    faulthandler.dump_traceback_later(options.seconds + 3 * ENDING_S, exit=True)
    with tempfile.TemporaryDirectory(prefix="isolog-stress-") as folder:
        code = run(Path(folder), options.seconds, options.seed)
    faulthandler.cancel_dump_traceback_later()
    return code


if __name__ == "__main__":
    sys.exit(main())
