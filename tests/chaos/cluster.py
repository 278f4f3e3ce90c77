"""Three brokers under load and faults (kills, pauses, floods, partitions), then a check.

``python -m tests.chaos.cluster --minutes 5 --seed 7`` (``make chaos``) runs plain producers of both
isolation levels, transactions, consumers of all levels and atomic snapshots. ``--spark`` adds a
streaming query that copies one topic into another, ``--lake`` workers of lakes, and ``--kafka``
Kafka's clients and two gateways. At the end all brokers are back: no committed record is lost,
duplicated, reordered or partial, and all replicas are equal.

During one mishap of each kind the views of the cluster are compared (``tests.views``). The program
prints one line with its events. The exit code is 0 if all checks passed, else 1. The seed decides
the mishaps and the records, but not the order of threads.
"""

from __future__ import annotations

import argparse
import faulthandler
import random
import shutil
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import pandas as pd

import isolog
from isolog.testing import LocalCluster, LocalEtcd
from spark_stream.testing.local_cluster import LocalBroker, ProcessPlace
from tests.chaos.checker import Violation, check
from tests.chaos.workers import (
    KAFKA_TOPIC,
    SCHEMA,
    TOPICS,
    Notes,
    Worker,
    fleeting_outcome_of,
    following_reader,
    plain_writer,
    replicated_outcome_of,
    snapshot_reader,
    transactional_writer,
)
from tests.etcd import copy_data, exchange_data, put_back_data, use_cached_etcd
from tests.floods import KINDS, OPENS, Target, flooded
from tests.histories.writing import HistoryWriter
from tests.hosts.machines import SmallDisk, with_clock
from tests.hosts.network import Network, can_make_hosts
from tests.support import eventually
from tests.system.replication.clusters import (
    CONF,
    await_equal_copies,
    await_in_sync,
    restore,
    with_retries,
)
from tests.views import ANYWHERE, disagreements

if TYPE_CHECKING:
    from tests.chaos.kafka_clients import KafkaClients
    from tests.chaos.lakes import Lakes
    from tests.chaos.query import Copy

LEVELS = ("read_uncommitted", "read_replicated", "read_committed", "read_atomic")
OF_MEMBERS = ("kill", "pause leader", "pause quorum", "take away", "fill", "restore")
CLOCKS = {1: 3_600, 2: 0, 3: -3_600}
"""The error of each host's clock, in seconds."""
DISK_MB = 400
STORE_MB = 32
"""The space for the metadata: etcd's quota, or the disk of its file."""
VIEWS_S = 30.0
_OLDER_S = 3.0  # brokers renew their leases, so etcd has changed until then
FICKLE = frozenset({"follow-read_uncommitted"})
ENDING_S = 120.0
COURSE_S = 600.0  # the first of each kind of mishap, on a busy machine
CONFIG = {"segment.bytes": 65_536, "replica.lag.time.max.ms": 1500}


@dataclass
class Outcome:
    """The result of a run. ``problems`` is empty if all checks passed."""

    seed: int
    strikes: Counter[str]
    notes: Notes
    writes: pd.DataFrame
    reads: pd.DataFrame
    query_failures: list[str] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        outcomes = self.writes["outcome"].value_counts().to_dict()
        return (
            f"chaos seed {self.seed}: {dict(self.strikes)}; {len(self.writes)} records {outcomes};"
            f" {self.notes.commits} commits, {self.notes.aborts} aborts; {len(self.reads)} records"
            f" read; the query failed {len(self.query_failures)} times; {len(self.problems)}"
            " problems"
        )


class Course(threading.Thread):
    """A course of actions on a cluster in place of mishaps. It ends without a stop."""

    def __init__(self, cluster: LocalCluster, action: Callable[[LocalCluster], None]) -> None:
        super().__init__(name="course", daemon=True)
        self.strikes: Counter[str] = Counter()
        self.failures: list[BaseException] = []
        self._cluster = cluster
        self._action = action

    def run(self) -> None:
        try:
            self._action(self._cluster)
        except BaseException as error:
            self.failures.append(error)


class Mishaps(threading.Thread):
    """Strikes one or two brokers at a time, and lets them recover, until stopped.

    The first strikes of a run are one of each kind, even in a short run.
    """

    def __init__(
        self,
        cluster: LocalCluster,
        stop: threading.Event,
        seed: int,
        etcd: LocalEtcd | None = None,
        network: Network | None = None,
        disks: Sequence[SmallDisk] = (),
        store_disk: SmallDisk | None = None,
        folder: Path = Path(),
    ) -> None:
        """``disks``: of the brokers. ``store_disk``: of the metadata's file.

        ``folder``: for copies of etcd's data.
        """
        super().__init__(name="mishaps", daemon=True)
        self._disks = disks
        self._store_disk = store_disk
        self._folder = folder
        self._etcd_is_full = False
        self._present: Path | None = None
        """The present data of etcd's members, during a mishap with an earlier copy."""
        self.compared: Counter[str] = Counter()
        """Kind of mishap → the number of brokers through which the views were compared."""
        self.differences: list[str] = []
        """Views that differed during a mishap."""
        self._network = network
        self._etcd = etcd
        self.strikes: Counter[str] = Counter()
        self.failures: list[BaseException] = []
        self._cluster = cluster
        self._floods = ExitStack()
        self._stopping = stop
        self._chance = random.Random(f"{seed}/mishaps")

    def run(self) -> None:
        try:
            kinds = [
                self._kill,
                self._kill_all,
                self._kill_and_doubt,
                self._stop_in_order,
                self._pause,
                self._cut,
                self._cut_off,
                self._flood,
            ]
            if self._etcd is not None:
                kinds += [self._kill_member, self._pause_leader, self._pause_quorum]
                kinds += [self._take_away, self._fill_etcd, self._restore_etcd]
            if self._store_disk is not None:
                kinds += [self._fill_store]
            if self._network is not None:
                kinds = [each for each in kinds if each not in (self._cut, self._cut_off)]
                kinds += [self._part, self._part_one_way, self._isolate]
                kinds += [self._delay, self._lose, self._freeze, self._fill]
            self._chance.shuffle(kinds)
            for kind in kinds:
                self._strike(kind, compares=True)
            while not self._stopping.wait(self._chance.uniform(0.2, 2.0)):
                self._strike(self._chance.choice(kinds))
        except BaseException as error:
            self.failures.append(error)
        finally:
            self._floods.close()

    def _strike(self, kind: Callable[[list[int]], None], *, compares: bool = False) -> None:
        numbers = self._chance.sample(list(self._cluster.brokers), 3)
        kind(numbers)
        if self._chance.random() < 0.25:
            self._kill(numbers[1:])  # another one, before the first is back
        # With etcd a lease lasts longer, and some mishaps have to last longer than a lease.
        self._stopping.wait(self._chance.uniform(0.1, 3.5 if self._etcd is None else 10.0))
        if compares:
            self._compare(kind.__name__.strip("_"))
        self._floods.close()
        if self._network is not None:
            self._network.heal()
        for disk in (*self._disks, *filter(None, [self._store_disk])):
            disk.clear()
        if self._etcd is not None:
            if self._present is not None:
                put_back_data(self._etcd, self._present)
                self._present = None
            self._etcd.restore()
            if self._etcd_is_full:
                self._etcd.free()
                self._etcd_is_full = False
        restore(self._cluster)
        self._stopping.wait(self._chance.uniform(0.0, 1.0))

    def _compare(self, kind: str) -> None:
        """Compare the views of the cluster, while the mishap lasts."""
        answered, found = disagreements(self._cluster, VIEWS_S)
        self.compared[kind] += answered
        self.differences += [f"{kind}: {each}" for each in found]

    def _kill(self, numbers: list[int]) -> None:
        if self._cluster.broker(numbers[0]).alive:
            self._cluster.kill(numbers[0])
            self.strikes["kill"] += 1

    def _kill_all(self, numbers: list[int]) -> None:
        for number in numbers:
            self._cluster.kill(number)
        self.strikes["kill all"] += 1

    def _kill_and_doubt(self, numbers: list[int]) -> None:
        """After its restart it has no record of its end, and vouches for no log."""
        self._cluster.kill(numbers[0])
        (self._cluster.broker(numbers[0]).directory / "broker.run").unlink(missing_ok=True)
        self.strikes["doubt"] += 1

    def _stop_in_order(self, numbers: list[int]) -> None:
        self._cluster.stop(numbers[0])
        self.strikes["stop"] += 1

    def _pause(self, numbers: list[int]) -> None:
        self._cluster.pause(numbers[0])
        self.strikes["pause"] += 1

    def _cut(self, numbers: list[int]) -> None:
        self._cluster.cut(numbers[0], numbers[1])
        self.strikes["cut"] += 1

    def _flood(self, numbers: list[int]) -> None:
        """Unauthenticated clients send endless small frames to both listeners of a broker."""
        broker = self._cluster.broker(numbers[0])
        kinds = [self._chance.choice([*KINDS, OPENS]) for _ in range(4)]
        addresses = (broker.address, broker.peer_address) * 2
        targets = [Target(*each) for each in zip(addresses, kinds, strict=True)]
        self._floods.enter_context(flooded(targets))
        self.strikes["flood"] += 1

    def _cut_off(self, numbers: list[int]) -> None:
        self._cluster.cut_off(numbers[0])
        self.strikes["cut off"] += 1

    def _kill_member(self, numbers: list[int]) -> None:
        assert self._etcd is not None
        self._etcd.members[numbers[0] - 1].kill()
        self.strikes["etcd: kill"] += 1

    def _pause_leader(self, _: list[int]) -> None:
        assert self._etcd is not None
        self._etcd.leader().pause()
        self.strikes["etcd: pause leader"] += 1

    def _part(self, numbers: list[int]) -> None:
        """Two hosts, with brokers and members of etcd, cannot reach each other."""
        assert self._network is not None
        self._network.set_way(numbers[0], numbers[1], cut=True)
        self._network.set_way(numbers[1], numbers[0], cut=True)
        self.strikes["part"] += 1

    def _part_one_way(self, numbers: list[int]) -> None:
        assert self._network is not None
        self._network.set_way(numbers[0], numbers[1], cut=True)
        self.strikes["part one way"] += 1

    def _isolate(self, numbers: list[int]) -> None:
        """A host cannot reach any other. Clients may reach it or not."""
        assert self._network is not None
        others = numbers[1:] + self._chance.choice([[], [self._network.me]])
        for other in others:
            self._network.set_way(numbers[0], other, cut=True)
            self._network.set_way(other, numbers[0], cut=True)
        self.strikes["isolate"] += 1

    def _delay(self, _: list[int]) -> None:
        """200 ms to every other host and back."""
        self._everywhere(delay_s=0.1)
        self.strikes["delay"] += 1

    def _lose(self, _: list[int]) -> None:
        self._everywhere(loss=0.05)
        self.strikes["lose"] += 1

    def _everywhere(self, **way: float) -> None:
        assert self._network is not None
        for source in range(1, self._network.me + 1):
            for target in range(1, self._network.me + 1):
                self._network.set_way(source, target, **way)

    def _freeze(self, numbers: list[int]) -> None:
        """A host pauses, with its broker and its member of etcd."""
        assert self._etcd is not None
        self._pause(numbers)
        self._etcd.members[numbers[0] - 1].pause()
        self.strikes["freeze"] += 1

    def _fill(self, numbers: list[int]) -> None:
        """A host's disk is full."""
        self._disks[numbers[0] - 1].fill()
        self.strikes["fill"] += 1

    def _fill_etcd(self, numbers: list[int]) -> None:
        """Etcd accepts no changes, and a broker dies, so no leader can be elected."""
        assert self._etcd is not None
        self._etcd_is_full = True
        self._etcd.fill()
        self._kill(numbers)
        self.strikes["etcd: fill"] += 1

    def _restore_etcd(self, _: list[int]) -> None:
        """An earlier copy replaces etcd's data, until the operator restores the present data."""
        assert self._etcd is not None
        older, self._present = self._folder / "older", self._folder / "present"
        shutil.rmtree(older, ignore_errors=True)
        older.mkdir()
        copy_data(self._etcd, older)
        time.sleep(_OLDER_S)
        exchange_data(self._etcd, older, self._present)
        self.strikes["etcd: restore"] += 1
        running = [each for each in self._cluster.brokers.values() if each.alive]
        said = {each.number: each.log_text().count("METADATA_LOST") for each in running}
        if not all(self._notices(each, said[each.number]) for each in running):
            self.differences.append("restore_etcd: a broker does not report METADATA_LOST")

    def _notices(self, broker: LocalBroker, before: int) -> bool:
        until = time.monotonic() + VIEWS_S
        while broker.log_text().count("METADATA_LOST") == before:
            if time.monotonic() > until:
                return False
            time.sleep(0.1)
        return True

    def _fill_store(self, numbers: list[int]) -> None:
        """The disk of the metadata's file is full, and a broker dies."""
        assert self._store_disk is not None
        self._store_disk.fill()
        self._kill(numbers)
        self.strikes["store: fill"] += 1

    def _take_away(self, _: list[int]) -> None:
        """No member answers, for longer than a lease."""
        assert self._etcd is not None
        for member in self._etcd.members:
            member.pause()
        self.strikes["etcd: take away"] += 1
        self._stopping.wait(self._chance.uniform(8.0, 30.0))

    def _pause_quorum(self, numbers: list[int]) -> None:
        assert self._etcd is not None
        for number in numbers[:2]:
            self._etcd.members[number - 1].pause()
        self.strikes["etcd: pause quorum"] += 1


def run(
    seconds: float,
    seed: int,
    *,
    spark: bool = False,
    etcd_folder: Path | None = None,
    hosts: bool = False,
    places: Sequence[ProcessPlace] = (),
    course: Callable[[LocalCluster], None] | None = None,
    histories: Path | None = None,
    lakes: bool = False,
    kafka: bool = False,
) -> Outcome:
    """Run with this many seconds of mishaps, and the time to end.

    ``places``: those of the brokers. ``course``: the actions on them in place of mishaps.
    ``etcd_folder``: for the three members of an etcd that has the metadata, and mishaps too.
    ``hosts``: each broker, and each of these members, is on a separate host, with its own clock and
    disk. The network between them is partitioned, slow and lossy. ``histories``: a folder for the
    results of clients. ``lakes``: workers copy the topics into tables, on a disk and in S3.
    ``kafka``: Kafka's clients write and read through gateways.
    """
    calm, stop, end = threading.Event(), threading.Event(), threading.Event()
    with ExitStack() as ended:
        notes = Notes()
        if histories is not None:
            path, name = histories / f"chaos-{seed}.jsonl", f"chaos seed {seed}"
            notes.history = ended.enter_context(closing(HistoryWriter(path, name)))
        etcd, network, conf, disks, store_disk = None, None, CONF, [], None
        folder = Path(ended.enter_context(tempfile.TemporaryDirectory()))
        if hosts:
            network = ended.enter_context(Network(3))
            places = [with_clock(network.place(each), offset) for each, offset in CLOCKS.items()]
            disks = [SmallDisk(folder / f"broker-{each}", DISK_MB) for each in CLOCKS]
            for disk in disks:
                ended.callback(disk.close)
        if etcd_folder is not None:
            etcd = ended.enter_context(
                LocalEtcd(
                    3,
                    etcd_folder,
                    places=places if hosts else (),
                    quota_bytes=STORE_MB << 20,
                )
            )
            # Hosts share no files, but these hosts do, and readers must not use that.
            conf = {"metadata": etcd.url("chaos"), "mapped_reads": not hosts}
        elif can_make_hosts():
            store_disk = SmallDisk(folder / "metadata", STORE_MB)
            ended.callback(store_disk.close)
        conf = {**conf, "metrics_listen": ANYWHERE}
        cluster = ended.enter_context(
            LocalCluster(3, conf=conf, folder=folder, cuttable=not places, places=places)
        )

        @ended.push
        def _(error, *_):
            if error is not None:
                _print_logs(cluster)

        def connect():
            return cluster.connect(timeout=60)

        with connect() as log:
            for name, partitions in TOPICS.items():
                least = 2 if partitions == 1 else 1
                config = CONFIG | {"min.insync.replicas": least}
                log.create_topic(name, partitions, 3, schema=SCHEMA, config=config)
            copy = _copy(cluster, log, ended) if spark else None
            tables_of = _lakes(cluster, log, ended, folder, seed) if lakes else None
            clients = _kafka_clients(cluster, log, ended, notes, folder, seed) if kafka else None

        def worker(name: str, task) -> Worker:
            return Worker(name, seed, notes, stop, task)

        slowly = {
            "rows_max": 4,
            "pause_s": 0.1,
        }  # all read records have to fit into memory
        safe = {"isolation": "read_committed", **slowly}
        writers = [
            *(
                worker(f"safe-{n}", plain_writer(connect, replicated_outcome_of, **safe))
                for n in range(2)
            ),
            worker("fleeting", plain_writer(connect, fleeting_outcome_of, **slowly)),
            *(
                worker(f"loader-{n}", transactional_writer(connect, replicated=True))
                for n in range(2)
            ),
            worker(
                "snapshots", snapshot_reader(connect, "read_atomic", pause_s=max(2.0, seconds / 60))
            ),
        ]
        followers = [
            worker(
                f"follow-{level}",
                following_reader(
                    connect,
                    level,
                    end,
                    on_loss="continue" if level == "read_uncommitted" else "fail",
                ),
            )
            for level in LEVELS
        ]
        mishaps = (
            Mishaps(cluster, calm, seed, etcd, network, disks, store_disk, folder)
            if course is None
            else Course(cluster, course)
        )
        for each in (*writers, *followers, mishaps):
            each.start()
        time.sleep(seconds)  # the length of the run, not a wait
        calm.set()
        mishaps.join(COURSE_S)
        problems = ["the course does not end"] if mishaps.is_alive() else []
        restore(cluster)
        eventually(lambda: notes.enough, ENDING_S)
        stop.set()
        stuck = _joined(writers)
        if clients is not None:
            stuck += clients.finish_writing()
        with connect() as log:
            for name, partitions in TOPICS.items():
                await_in_sync(log, name)
                for number in range(partitions):
                    try:
                        await_equal_copies(cluster, name, number)
                    except AssertionError as error:
                        problems.append(f"{name}/{number}: the replicas differ: {error}")
            if copy is not None:
                copy.finish()
                problems += copy.problems(log)
            end.set()
            stuck += _joined(followers)
            if tables_of is not None:
                problems += tables_of.check(log)
                mishaps.strikes.update({f"lake: {k}": n for k, n in tables_of.strikes.items()})
            if clients is not None:
                problems += clients.check(log)
                strikes = clients.gateways.strikes
                mishaps.strikes.update({f"gateway: {kind}": n for kind, n in strikes.items()})
            topics = list(TOPICS) if copy is None or histories is None else [*TOPICS, copy.target]
            for level in LEVELS:
                called = time.monotonic_ns()
                tables = with_retries(
                    lambda level=level: log.read(topics, isolation=level, metadata=True)
                )
                for topic, table in tables.items():
                    notes.read(
                        f"final-{level}", level, 0, table, called, topic=topic, complete=True
                    )
            if copy is not None:
                copy.write_history(notes, tables)
        writes, reads = pd.concat(notes.writes), pd.concat(notes.reads)
        finals = {f"final-{level}" for level in LEVELS} | {f"follow-{level}" for level in LEVELS}
        problems += [f"{name} is stuck" for name in stuck]
        if isinstance(mishaps, Mishaps):
            problems += mishaps.differences
            if not mishaps.compared.total():
                problems.append("no broker has answered for a comparison of views")
        problems += [repr(each) for each in (*notes.surprises, *mishaps.failures)]
        of_kafka = writes["topic"] == KAFKA_TOPIC, reads["topic"] == KAFKA_TOPIC
        problems += map(str, _broken(writes[~of_kafka[0]], reads[~of_kafka[1]], finals))
        problems += map(str, _broken(writes[of_kafka[0]], reads[of_kafka[1]], {"kafka-final"}))
        if problems:
            _print_logs(cluster)
        failures = [] if copy is None else copy.failures
    return Outcome(seed, mishaps.strikes, notes, writes, reads, failures, problems)


def _print_logs(cluster: LocalCluster) -> None:
    for broker in cluster.brokers.values():
        print(f"--- broker {broker.number}\n{broker.log_text()[-6000:]}", file=sys.stderr)


def _copy(cluster: LocalCluster, log: isolog.Log, ended: ExitStack) -> Copy:
    from tests.chaos.query import Copy  # without it, no run needs Spark

    copy = Copy(cluster, log, CONFIG)
    ended.callback(copy.close)
    return copy


def _lakes(
    cluster: LocalCluster, log: isolog.Log, ended: ExitStack, folder: Path, seed: int
) -> Lakes:
    from tests.chaos.lakes import Lakes  # it needs the packages of object stores

    lakes = ended.enter_context(Lakes(cluster, log, list(TOPICS), folder, seed))
    lakes.start()
    return lakes


def _kafka_clients(
    cluster: LocalCluster,
    log: isolog.Log,
    ended: ExitStack,
    notes: Notes,
    folder: Path,
    seed: int,
) -> KafkaClients:
    from tests.chaos.kafka_clients import KafkaClients  # it needs confluent-kafka

    clients = ended.enter_context(KafkaClients(cluster, log, notes, folder, seed))
    clients.start()
    return clients


def _broken(writes: pd.DataFrame, reads: pd.DataFrame, finals: set[str]) -> list[Violation]:
    return check(writes, reads, finals, FICKLE)


def _joined(threads: list[Worker]) -> list[str]:
    """Wait for the threads. Return the names of those that do not end."""
    deadline = time.monotonic() + ENDING_S
    for each in threads:
        each.join(max(0.0, deadline - time.monotonic()))
    return [each.name for each in threads if each.is_alive()]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=1.0)
    parser.add_argument("--seed", type=int, default=None)
    parser.add_argument("--spark", action="store_true")
    parser.add_argument("--etcd", action="store_true", help="metadata in three members of etcd")
    parser.add_argument("--histories", type=Path, help="a folder for what clients were told")
    parser.add_argument("--hosts", action="store_true", help="each on a host of its own, with etcd")
    parser.add_argument("--lake", action="store_true", help="workers of lakes, on disk and in S3")
    parser.add_argument("--kafka", action="store_true", help="Kafka's clients and two gateways")
    options = parser.parse_args()
    if (options.lake or options.kafka) and options.hosts:
        parser.error("--lake and --kafka need one network, and --hosts has several")
    use_cached_etcd()
    seed = random.randrange(1 << 32) if options.seed is None else options.seed
    print(f"SEED={seed}", flush=True)
    faulthandler.enable()
    with tempfile.TemporaryDirectory() as folder:
        outcome = run(
            options.minutes * 60,
            seed,
            spark=options.spark,
            etcd_folder=Path(folder) if options.etcd or options.hosts else None,
            hosts=options.hosts,
            histories=options.histories,
            lakes=options.lake,
            kafka=options.kafka,
        )
    print(outcome, flush=True)
    for each in outcome.query_failures[:20]:
        print(f"the query failed: {each}", file=sys.stderr)
    for each in outcome.problems[:20]:
        print(each, file=sys.stderr)
    return 1 if outcome.problems else 0


if __name__ == "__main__":
    sys.exit(main())
