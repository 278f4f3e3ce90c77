"""A lake in memory: a log with transactions, tables, and workers that a schedule interleaves."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta

import pyarrow as pa

from spark_stream.errors import LakeStopped, LakeUnavailable
from spark_stream.lake import cleaning, expiry, merging, retention, rounds, steps, versions
from spark_stream.lake.cuts import CUT, CUT_TIME, CUTS
from spark_stream.lake.delta.actions import Action, AddFile, CommitInfo, RemoveFile, Txn
from spark_stream.lake.delta.schema import OFFSET, PARTITION, TIMESTAMP
from spark_stream.lake.delta.table import Table, application
from spark_stream.lake.rounds import Lake

Row = tuple[int, int, int]
"""The partition, the offset and the transaction of a record."""

CLUSTER = "c1"
TOPICS = ("orders", "audit")
VERSIONS_KEPT_MS = 25
FILES_KEPT_MS = 30
ORPHANS_KEPT_MS = 40
_CLEANING_EVERY = 40
PROPERTIES = {
    expiry.LOG_RETENTION: f"interval {VERSIONS_KEPT_MS} milliseconds",
    expiry.FILE_RETENTION: f"interval {FILES_KEPT_MS} milliseconds",
}


def _time_text(time_ms: int) -> str:
    return (datetime(1970, 1, 1, tzinfo=UTC) + timedelta(milliseconds=time_ms)).isoformat()


@dataclass
class Transaction:
    """A transaction, with its records by topic and partition."""

    number: int
    rows: dict[tuple[str, int], list[int]] = field(default_factory=dict)
    outcome: str = "open"


@dataclass
class MemoryLog:
    """Topics with partitions, whose records belong to transactions."""

    ids: dict[str, str] = field(default_factory=lambda: {name: f"{name}-1" for name in TOPICS})
    columns: dict[str, int] = field(default_factory=lambda: dict.fromkeys(TOPICS, 1))
    ends: dict[tuple[str, int], int] = field(
        default_factory=lambda: {("orders", 0): 0, ("orders", 1): 0, ("audit", 0): 0}
    )
    transactions: list[Transaction] = field(default_factory=list)
    log_starts: dict[tuple[str, int], int] = field(default_factory=dict)
    absent: set[int] = field(default_factory=set)
    """The transactions whose records were removed before the lake was created."""
    retention_ms: int = -1
    clock: int = 0
    widths: dict[tuple[str, int, int], int] = field(default_factory=dict)
    """The number of columns of each record, by topic, partition and offset."""
    times: dict[int, int] = field(default_factory=dict)
    """The time of each transaction's last record. All of its records count as that old."""

    def begin(self) -> None:
        self.transactions.append(Transaction(len(self.transactions)))

    def start_above_zero(self) -> None:
        """Append a transaction to each partition, and remove its records, as retention does."""
        for place in self.ends:
            self.begin()
            self.append(len(self.transactions) - 1, place, 2)
            self.transactions[-1].outcome = "committed"
        self.log_starts |= self.ends
        self.absent = set(range(len(self.transactions)))

    def delete(self, name: str) -> None:
        """Delete a topic with all its records."""
        del self.ids[name]

    def create_again(self, name: str) -> None:
        """Create another topic with the name of one that was deleted."""
        self.ids[name] = f"{name}-2"

    def append(self, number: int, place: tuple[str, int], rows: int) -> None:
        first = self.ends[place]
        self.transactions[number].rows.setdefault(place, []).extend(range(first, first + rows))
        self.ends[place] = first + rows
        self.widths |= {(*place, at): self.columns[place[0]] for at in range(first, first + rows)}
        self.times[number] = self.clock

    def open_ones(self) -> list[int]:
        return [each.number for each in self.transactions if each.outcome == "open"]

    def committed(self, topic: str) -> set[Row]:
        return {
            (partition, offset, each.number)
            for each in self.transactions
            if each.outcome == "committed"
            for (name, partition), offsets in each.rows.items()
            if name == topic
            for offset in offsets
        }

    def cut(self) -> dict[str, dict[int, int]]:
        """Return the greatest offsets that divide no transaction."""
        at = dict(self.ends)
        moved = True
        while moved:
            moved = False
            for each in self.transactions:
                inside = [place for place, rows in each.rows.items() if rows[-1] < at[place]]
                is_whole = len(inside) == len(each.rows) and each.outcome != "open"
                if is_whole:
                    continue
                for place, rows in each.rows.items():
                    if rows[0] < at[place] and (each.outcome != "aborted" or not is_whole):
                        at[place], moved = rows[0], True
        found: dict[str, dict[int, int]] = {name: {} for name in self.ids}
        for (name, partition), offset in at.items():
            if name in found:
                found[name][partition] = offset
        return found

    def states(self) -> dict[str, steps.TopicState]:
        return {
            name: steps.TopicState(
                name,
                topic_id,
                pa.schema([(f"c{k}", pa.int64()) for k in range(self.columns[name])]),
                {p: self.log_starts.get((name, p), 0) for t, p in self.ends if t == name},
                self.retention_ms,
                schema_version=self.columns[name],
            )
            for name, topic_id in self.ids.items()
        }


@dataclass
class Faults:
    """The chance of each fault of a put, and of the end of a worker at a step."""

    lost_before: float = 0.05
    lost_after: float = 0.1
    late: float = 0.05
    killed: float = 0.02
    paused: float = 0.002
    """A worker pauses for longer than the expiry of versions."""

    @classmethod
    def of(cls, seed: int) -> Faults:
        """Return the faults of a seed: in every fourth run puts come late, and workers pause."""
        return cls(late=0.25, paused=0.02) if seed % 4 == 3 else cls()


class LakeWorld:
    """Workers over one location. Each event is one step of one worker, or of somebody else."""

    def __init__(self, seed: int, workers: int = 2, faults: Faults | None = None) -> None:
        self.random = random.Random(seed)
        self.log = MemoryLog()
        self.faults = faults or Faults.of(seed)
        self.versions: dict[str, list[list[Action]]] = {}
        """All versions that were ever the next one of a table."""
        self.files: dict[str, dict[int, tuple[list[Action], int]]] = {}
        """The files of versions with their times: some versions expired, some files came late."""
        self.put_at: dict[str, list[int]] = {}
        """The times of these versions."""
        self.floors: dict[str, int] = {}
        self.deleted: set[str] = set()
        self.written: dict[str, dict[str, int]] = {}
        """By table, the files of rows and cuts that were not deleted, with their times."""
        self.started: dict[int, int] = {}
        """The time at which each worker began its present script."""
        self.cleaning: Iterator[type] | None = None
        self.events = 0
        self.orphans = 0
        self.tiered: dict[tuple[str, int], int] = {}
        self.paused: dict[int, int] = {}
        self.filled: set[tuple[str, int]] = set()
        """Places of expired versions that a late put has filled."""
        self.expired = 0
        self.trimmed = 0
        self.merged_cuts = 0
        self.rows: dict[str, list[Row]] = {}
        self.columns: dict[str, int] = {}
        self.cuts: dict[str, list[steps.Cut]] = {}
        self.late: list[tuple[str, int, list[Action]]] = []
        self.checkpoints: dict[str, dict[int, list[Action]]] = {}
        self.last_checkpoints: dict[str, int] = {}
        self.foreign_checkpoints: set[tuple[str, int]] = set()
        self.clock = 0
        self.due_ms: dict[str, int] = {}
        self.names = 0
        self.rounds = 0
        self.outdated = 0
        self.merged = 0
        self.stopped: LakeStopped | None = None
        self.lakes = [self._new_lake() for _ in range(workers)]
        self.running: list[Iterator[type] | None] = [None] * workers
        self.put_hook: Callable[[str], None] = lambda table: None

    # -- workers --------------------------------------------------------------------------------

    def _new_lake(self) -> Lake:
        return Lake("lake-1", CLUSTER, list(TOPICS), properties=PROPERTIES, checkpoint_every=2)

    def step(self, worker: int) -> None:
        """Run one step of a worker, or pause or kill it."""
        if self.paused.get(worker, 0) > 0:
            self.paused[worker] -= 1
            return
        if self.random.random() < self.faults.killed:
            self.running[worker] = None
            self.lakes[worker] = self._new_lake()
            return
        running = self.running[worker]
        if running is None:
            running = self.running[worker] = self._run(self.lakes[worker])
            self.started[worker] = self.clock
        before_put = False
        try:
            before_put = next(running) is steps.Now
        except StopIteration:
            self.running[worker] = None
        except LakeUnavailable:
            self.running[worker] = None
        if self.random.random() < self.faults.paused * (50 if before_put else 1):
            self.paused[worker] = self.random.randrange(20, 150)

    def run(self, worker: int, steps: int) -> None:
        """Run some steps of a worker."""
        for _ in range(steps):
            self.step(worker)

    def step_cleaning(self) -> None:
        """Run one step of a removal of orphans. From time to time, begin one."""
        self.events += 1
        if self.cleaning is None and self.events % _CLEANING_EVERY == 0:
            name = [*TOPICS, CUTS][self.events // _CLEANING_EVERY % 3]
            self.cleaning = self._clean(name)
        if self.cleaning is not None and next(self.cleaning, None) is None:
            self.cleaning = None

    def _clean(self, name: str) -> Iterator[type]:
        """Remove orphans, unless a worker or a put is delayed for longer than their age."""
        now_ms = self.clock
        found = yield from self._drive(cleaning.find_orphans(name, now_ms, ORPHANS_KEPT_MS))
        oldest_ms = now_ms - ORPHANS_KEPT_MS
        begun = [at for worker, at in self.started.items() if self.running[worker] is not None]
        if any(at <= oldest_ms for at in begun):
            return
        paths = {each.path.removeprefix(f"{name}/") for each in found}
        times = self.written.get(name, {})
        self.late = [
            each
            for each in self.late
            if each[0] != name
            or all(a.add is None or times.get(a.add.path, 0) > oldest_ms for a in each[2])
        ]
        table = self.table(name)
        assert not paths & (table.files.keys() | table.removed.keys()), f"{name}: no orphans"
        for path in paths:
            del times[path]
        self.deleted |= paths
        self.orphans += len(paths)

    def _run(self, lake: Lake) -> Iterator[type]:
        """Run a round, a merge or an expiry, and pause after each effect."""
        kind = self.random.random()
        if kind < 0.15:
            table = lake.tables[self.random.choice([*TOPICS, CUTS])]
            self.expired += yield from self._drive(expiry.expire_table(table, self.due_ms))
            return
        if kind < 0.2 and lake.cuts.version >= 0:
            yield from self._drive(retention.trim_cuts(lake.cuts, CLUSTER, lake.id))
            return
        if kind < 0.3:
            state = self.log.states().get(self.random.choice(TOPICS))
            if (
                state is not None
                and state.id == f"{state.name}-1"
                and lake.tables[state.name].version >= 0
            ):
                script = retention.trim_table(lake.tables[state.name], CLUSTER, state)
                self.trimmed += yield from self._drive(script)
            return
        if kind < 0.35 and lake.cuts.version >= 0:
            script = merging.merge_table(
                lake.cuts, CLUSTER, lake.id, 8, 2, ranging=merging.range_of_cuts
            )
            self.merged_cuts += bool((yield from self._drive(script)))
            return
        if kind < 0.65:
            name = self.random.choice(TOPICS)
            script = merging.merge_table(lake.tables[name], CLUSTER, f"{name}-1", 5000, 2)
            if lake.tables[name].version < 0:
                return
            self.merged += bool((yield from self._drive(script)))
            return
        lake.recorded = self._recorded()
        done = yield from self._drive(rounds.run_round(lake))
        self.rounds += 1
        self.outdated += not done
        for table in lake.tables.values():
            yield from self._drive(versions.confirm(table))
        for name in TOPICS:
            for partition, at in lake.tables[name].offsets(f"{name}-1").items():
                self._note_tiered(name, partition, at)

    def _recorded(self) -> dict[str, dict[int, int]]:
        found: dict[str, dict[int, int]] = {}
        for (name, partition), at in self.tiered.items():
            found.setdefault(f"{name}-1", {})[partition] = at
        return found

    def _note_tiered(self, name: str, partition: int, at: int) -> None:
        """Record an offset that a worker read back, as local retention relies on it."""
        have = self.table(name).offset(f"{name}-1", partition)
        assert have is not None
        assert at <= have, f"{name}: {at} was recorded, the table ends at {have}"
        self.tiered[name, partition] = max(at, self.tiered.get((name, partition), 0))

    def _drive(self, script: steps.Script[object]) -> Iterator[type]:
        answer: object = None
        error: Exception | None = None
        while True:
            try:
                step = script.throw(error) if error is not None else script.send(answer)
            except StopIteration as end:
                return end.value
            answer, error = None, None
            try:
                answer = self._carry_out(step)
            except LakeUnavailable as unavailable:
                error = unavailable
            yield type(step)

    def _carry_out(self, step: steps.Step[object]) -> object:
        match step:
            case steps.Now():
                self.clock += 1
                return self.clock
            case steps.NewMark():
                return self._name("mark")
            case steps.DescribeTopics():
                found = self.log.states().items()
                return {name: each for name, each in found if each.id == f"{name}-1"}
            case steps.FindCut(lower, versions):
                known = {name for name in lower if self.log.columns[name] <= versions[name]}
                return {name: each for name, each in self.log.cut().items() if name in known}
            case steps.ReadVersion(table, version):
                found = self.files.get(table, {}).get(version)
                return None if found is None else found[0]
            case steps.ReadCheckpoint(table, version):
                return self._checkpoint(table, version)
            case steps.SyncTable(_, sizes):
                return [each for each in sizes if each in self.deleted]
            case steps.ReadFloor(table):
                return self.floors.get(table, 0)
            case steps.PutFloor(table, floor):
                age = self.clock - self.put_at[table][floor]
                assert age > VERSIONS_KEPT_MS, f"{table}: versions below {floor} expired early"
                self.floors[table] = max(floor, self.floors.get(table, 0))
                return None
            case steps.ListFiles(table):
                written = self.written.get(table, {}).items()
                return [steps.StoredFile(f"{table}/{path}", 1, at) for path, at in written]
            case steps.ListLog(table):
                return self._log_files(table)
            case steps.DeleteFiles(table, paths):
                for path in paths:
                    self._delete(table, path)
                return None
            case steps.PutVersion(table, version, actions):
                return self._faulty_put(table, version, actions)
            case steps.WriteFiles(topic, ranges):
                return [
                    each
                    for each in (
                        self._file(topic, partition, first, end)
                        for partition, (first, end) in ranges.items()
                    )
                    if each is not None
                ]
            case steps.WriteCut(cut):
                path = self._path(CUTS)
                self.cuts[path] = [cut]
                return self._cut_file(path)
            case steps.FindRanges(_, files):
                return {each.path: self._ranges(each.path) for each in files}
            case steps.MergeFiles(table, files, _) if table == CUTS:
                path = self._path(CUTS)
                self.cuts[path] = [cut for each in files for cut in self.cuts[each.path]]
                return self._cut_file(path, data_change=False)
            case steps.MergeFiles(table, files, _):
                first = merging.range_of(files[0])
                assert first is not None
                rows = [row for each in files for row in self.rows[each.path]]
                rows = [row for row in rows if row[0] == first.partition]
                return self._add(table, rows, sum(each.size for each in files), data_change=False)
            case steps.WriteCheckpoint(table):
                actions = [Action(protocol=table.protocol), Action(metadata=table.metadata)]
                actions += [Action(txn=each) for each in table.txns.values()]
                actions += [Action(add=each) for each in table.files.values()]
                actions += [Action(remove=each) for each in table.removed.values()]
                assert table.stopped is None
                self.checkpoints.setdefault(table.at, {})[table.version] = actions
                self.last_checkpoints[table.at] = table.version
                return None
        raise AssertionError(step)

    def _cut_file(self, path: str, *, data_change: bool = True) -> AddFile:
        numbers = [cut.number for cut in self.cuts[path]]
        newest = _time_text(max(cut.time_ms for cut in self.cuts[path]))
        stats = {
            "minValues": {CUT: min(numbers)},
            "maxValues": {CUT: max(numbers), CUT_TIME: newest},
        }
        return AddFile(
            path=path,
            size=len(numbers),
            modification_time=0,
            data_change=data_change,
            stats=json.dumps(stats),
        )

    def _ranges(self, path: str) -> dict[int, tuple[int, int]]:
        offsets: dict[int, list[int]] = {}
        for partition, offset, _ in self.rows[path]:
            offsets.setdefault(partition, []).append(offset)
        return {partition: (min(found), max(found)) for partition, found in offsets.items()}

    def _name(self, kind: str) -> str:
        self.names += 1
        return f"{kind}-{self.names}"

    def _path(self, table: str) -> str:
        """Return the path of a new file, in the form of isolog's."""
        self.names += 1
        path = f"{self.names:020d}-{self.names:016x}.parquet"
        self.written.setdefault(table, {})[path] = self.clock
        return path

    def _file(
        self, topic: steps.TopicState, partition: int, first: int, end: int
    ) -> AddFile | None:
        rows = [
            row
            for row in sorted(self.log.committed(topic.name))
            if row[0] == partition and first <= row[1] < end
        ]
        if not rows:
            return None
        width = max(self.log.widths[topic.name, row[0], row[1]] for row in rows)
        assert width <= len(topic.schema), f"{topic.name}: {rows} lose the values of a column"
        made = self._add(topic.name, rows, 100)
        self.columns[made.path] = len(topic.schema)
        return made

    def _add(self, table: str, rows: list[Row], size: int, *, data_change: bool = True) -> AddFile:
        path = self._path(table)
        self.rows[path] = rows
        stats = {
            "numRecords": len(rows),
            "minValues": {PARTITION: min(row[0] for row in rows), OFFSET: min(r[1] for r in rows)},
            "maxValues": {
                PARTITION: max(row[0] for row in rows),
                OFFSET: max(row[1] for row in rows),
                TIMESTAMP: _time_text(max(self.log.times[row[2]] for row in rows)),
            },
        }
        return AddFile(
            path=path,
            size=size,
            modification_time=0,
            data_change=data_change,
            stats=json.dumps(stats),
        )

    # -- the location ---------------------------------------------------------------------------

    def _checkpoint(self, name: str, version: int | None) -> Table | None:
        found = self.checkpoints.get(name, {})
        if version is None:
            version = self.last_checkpoints.get(name, -1)
            if version not in found:
                version = self.floors.get(name, -1)
        if version not in found:
            return None
        table = Table(name)
        table.restore(version, found[version])
        return table

    def _log_files(self, name: str) -> list[steps.LogFile]:
        return [
            steps.LogFile(f"{version}.{kind}", version, kind, modified_ms)
            for version, (_, modified_ms) in self.files.get(name, {}).items()
            for kind in (steps.VERSION, steps.CHECKPOINT)
            if kind == steps.VERSION
            or version in self.checkpoints.get(name, {})
            or (name, version) in self.foreign_checkpoints
        ]

    def _delete(self, name: str, path: str) -> None:
        """Delete a file of the log, or one of rows that no later version needs."""
        number, _, kind = path.partition(".")
        if kind == steps.VERSION:
            assert int(number) < self.floors[name]
            earlier = {(name, each) for each in self.files[name] if each < int(number)}
            assert earlier <= self.filled, f"{name}: version {number} was deleted before others"
            self.files[name].pop(int(number), None)
            self.filled.discard((name, int(number)))
        elif kind == steps.CHECKPOINT:
            self.checkpoints.get(name, {}).pop(int(number), None)
        else:
            table = self.table(name)
            assert path not in table.files, f"{name}: a live file was deleted"
            age = self.clock - (table.removed[path].deletion_timestamp or 0)
            assert path in self.deleted or age > FILES_KEPT_MS, f"{name}: a file expired early"
            self.deleted.add(path)
            self.written[name].pop(path, None)

    def _faulty_put(self, table: str, version: int, actions: list[Action]) -> bool:
        chance = self.random.random()
        if chance < self.faults.lost_before:
            raise LakeUnavailable("the put was lost")
        if chance < self.faults.lost_before + self.faults.late:
            self.late.append((table, version, actions))
            raise LakeUnavailable("the put is late")
        done = self.put(table, version, actions)
        if self.random.random() < self.faults.lost_after:
            raise LakeUnavailable("the answer was lost")
        return done

    def put(self, table: str, version: int, actions: list[Action]) -> bool:
        """Write a version if it does not exist, and check the table."""
        versions, files = self.versions.setdefault(table, []), self.files.setdefault(table, {})
        if version in files:
            return False
        files[version] = actions, self.clock
        if version < len(versions):  # an expired one: the table does not have this one
            self.filled.add((table, version))
            return True
        assert version == len(versions), "a version was skipped"
        versions.append(actions)
        self.put_at.setdefault(table, []).append(self.clock)
        if table == CUTS and any(each.remove is not None for each in actions):
            assert self.table(CUTS).files, "all cuts were removed"
        self.put_hook(table)
        return True

    def put_late(self) -> None:
        """Carry out a late put, rather one at the place of an expired version."""
        if self.late:
            expired = [each for each in self.late if each[1] < self.floors.get(each[0], 0)]
            found = self.random.choice(expired or self.late)
            self.late.remove(found)
            self.put(*found)

    def compact(self, name: str) -> None:
        """Merge files of all partitions into one, as another program does."""
        table = self.table(name)
        if len(table.files) < 2:
            return
        files = self.random.sample(
            sorted(table.files), self.random.randrange(2, 1 + len(table.files))
        )
        rows = [row for path in files for row in self.rows[path]]
        actions = [Action(commit_info=CommitInfo(operation="OPTIMIZE"))]
        removed = [table.files[path].removed(self.clock, data_change=False) for path in files]
        actions += [Action(remove=each) for each in removed]
        actions.append(Action(add=self._add(name, rows, 1, data_change=False)))
        if self.put(name, table.version + 1, actions):
            self.foreign_checkpoints.add((name, table.version + 1))

    def restore(self, name: str) -> bool:
        """Restore an older version, as another program does. Offsets stay, as Delta's RESTORE."""
        table = self.table(name)
        old = self.table(name, self.random.randrange(table.version + 1))
        gone = [path for path in table.files if path not in old.files]
        if not gone:
            return False
        actions = [Action(commit_info=CommitInfo(operation="RESTORE"))]
        actions += [Action(remove=RemoveFile(path=path)) for path in gone]
        actions += [Action(add=each) for path, each in old.files.items() if path not in table.files]
        return self.put(name, table.version + 1, actions)

    def remove_local_records(self) -> None:
        """Remove the records of the log that local retention may remove."""
        self.log.log_starts |= self.tiered

    def delete_or_create(self, name: str) -> None:
        """Delete a topic, or create one with its name. At least one topic of the lake stays."""
        if name not in self.log.ids:
            self.log.create_again(name)
        elif all(self.log.ids.get(each) == f"{each}-1" for each in TOPICS):
            self.log.delete(name)

    def copy_back(self, name: str, end: int) -> None:
        """Replace the folder of a table by an older copy, which has the versions below ``end``."""
        del self.versions[name][end:]
        for each in (self.files[name], self.checkpoints[name]):
            for version in [version for version in each if version >= end]:
                del each[version]
        self.last_checkpoints[name] = max(self.checkpoints[name], default=-1)

    def table(self, name: str, version: int | None = None) -> Table:
        """Return the state of a table at a version."""
        table = Table(name)
        versions = self.versions.get(name, [])
        for number, actions in enumerate(versions[: None if version is None else version + 1]):
            table.apply(number, actions)
        return table

    # -- checks ---------------------------------------------------------------------------------

    def rows_of(self, table: Table) -> list[Row]:
        return sorted(row for path in table.files for row in self.rows[path])

    def check_table(self, name: str, version: int | None = None) -> None:
        """Check that a version has each committed row below its offsets once, and no other."""
        table = self.table(name, version)
        rows = self.rows_of(table)
        assert len(rows) == len(set(rows)), f"{name}@{version}: rows twice"
        assert table.metadata is not None
        columns = json.loads(table.metadata.schema_string)["fields"]
        assert len(columns) >= 3 + max(
            (self.columns.get(path, 0) for path in table.files), default=0
        )
        of = f"{name}-1"
        ends = {p: table.offset(of, p) or 0 for t, p in self.log.ends if t == name}
        starts = {p: table.first_offset(of, p) or 0 for p in ends}
        below = {row for row in self.log.committed(name) if row[1] < ends[row[0]]}
        want = {row for row in below if row[1] >= starts[row[0]]}
        for row in below - want:
            if row[2] in self.log.absent:
                continue
            age = self.clock - self.log.times[row[2]]
            assert 0 <= self.log.retention_ms < age, f"{name}@{version}: {row} was removed early"
        assert set(rows) == want, f"{name}@{version}: {sorted(want ^ set(rows))}"
        for each in self.log.transactions:
            of_table = {p: o for (t, p), o in each.rows.items() if t == name}
            inside = {all(at < ends[p] for at in rows) for p, rows in of_table.items()}
            none = {all(at >= ends[p] for at in rows) for p, rows in of_table.items()}
            assert inside <= {True} or none <= {True}, f"{name}@{version} divides {each.number}"

    def check_cuts(self) -> None:
        """Check that the tables of each recorded cut have the same transactions."""
        recorded = [cut for path in self.table(CUTS).files for cut in self.cuts[path]]
        numbers = sorted(cut.number for cut in recorded)
        last = self.table(CUTS).number("isolog:lake-1")
        assert numbers == list(range(last + 1 - len(numbers), last + 1)), numbers
        assert numbers or last < 0, "the last cut was removed"
        for actions in self.versions.get(CUTS, []):
            for cut in (
                each for a in actions if a.add is not None for each in self.cuts[a.add.path]
            ):
                age = self.clock - cut.time_ms
                assert cut.number in numbers or age > VERSIONS_KEPT_MS, (
                    f"cut {cut.number} was removed"
                )
        for cut in recorded:
            rows, starts = set(), {}
            for entry in cut.entries:
                table = self.table(entry.topic, entry.version)
                starts |= {
                    (entry.topic, p): table.first_offset(entry.topic_id, p) or 0
                    for p in entry.offsets
                }
                for partition, offset in entry.offsets.items():
                    at = table.txns.get(application(entry.topic_id, partition), Txn("", 0)).version
                    assert at == offset, f"cut {cut.number}: {entry.topic}"
                rows |= {(entry.topic, p, o) for p, o, _ in self.rows_of(table)}
            for each in self.log.transactions:
                mine = {
                    (t, p, o)
                    for (t, p), found in each.rows.items()
                    for o in found
                    if o >= starts.get((t, p), 1 << 60)
                }
                want = mine if each.outcome == "committed" and mine & rows else set()
                assert mine & rows == want, f"cut {cut.number} divides {each.number}"

    def finish(self) -> None:
        """Decide all transactions, and let one worker finish without faults."""
        for number in self.log.open_ones():
            self.log.transactions[number].outcome = "committed"
        self.faults = Faults(0, 0, 0, 0, 0)
        self.late.clear()
        lake = self._new_lake()
        lake.recorded = self._recorded()
        for _ in range(3):
            for _ in self._drive(rounds.run_round(lake)):
                pass
        for name in TOPICS:
            if name not in self.versions:
                assert self.log.ids.get(name) != f"{name}-1", f"{name} has no table"
                continue
            self.check_table(name)
            assert not self.deleted & self.table(name).files.keys()
            if self.log.ids.get(name) != f"{name}-1":
                continue  # it was deleted, and its table stays as it was
            assert lake.tables[name].version == self.table(name).version
            rows, table = set(self.rows_of(self.table(name))), self.table(name)
            want = {
                row
                for row in self.log.committed(name)
                if row[1] >= (table.first_offset(f"{name}-1", row[0]) or 0)
            }
            assert rows == want, f"{name}: rows are missing at the end"
            recorded = self.table(CUTS).offsets(f"{name}-1")
            assert recorded == table.offsets(f"{name}-1"), f"{name}: no cut is recorded at the end"
