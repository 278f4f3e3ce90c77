"""After any torn, lost or refused write, a log opens with a prefix of its appends.

The real log on the simulated disk: power cuts between any two steps, failing fsyncs, a full disk.
"""

from __future__ import annotations

import random
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from isolog.errors import DamagedSegment, DiskFull, StorageFailure
from spark_stream.consistency.entries import Kind, Table
from spark_stream.consistency.ids import EntryIndex, Offset
from spark_stream.consistency.partition.producers import Stamp
from spark_stream.consistency.replication.bounds import Boundary
from spark_stream.storage.format.log_format import LogFormat
from spark_stream.storage.format.stored import StoredEntries
from spark_stream.storage.log.log import PartitionLog
from spark_stream.storage.settings import Flush
from tests.examples import examples
from tests.simulation.disk import SimulatedDisk
from tests.storage import logs
from tests.storage.disks import Died, dying_in
from tests.storage.logs import EPOCH, NOW, everything, format_of, records
from tests.storage.replicas import new_log

HERE = Path("/topics/t/0")
Row = tuple[int, int, int, int, int]
"""Of an entry: its index, kind, transaction, base offset and count."""


NO_ROW: Row = (-1, -1, -1, -1, -1)


def rows_of(log: PartitionLog) -> list[Row]:
    return rows_of_tables(log.tables())


def rows_of_tables(tables: list[Table]) -> list[Row]:
    names = ["entry_index", "kind", "transaction", "base_offset", "count"]
    return [row for table in tables for row in table[names].tolist()]


@dataclass
class Run:
    """A log, and its expected content: the acknowledged rows, and the number of forced ones."""

    disk: SimulatedDisk
    log_format: LogFormat
    told: list[Row] = field(default_factory=list)
    refused: list[Row] = field(default_factory=list)
    forced: int = 0
    cut_to: int | None = None
    """A truncation to this entry, or a reset, that was not finished."""
    reset_to: Boundary | None = None
    sure: bool = False
    """A disk that loses no write, even without an fsync, and tears none."""
    ended: str = ""
    """The last finished step that shortens a log."""
    distrusted: bool = False
    """Whether an fsync failed since the log opened."""

    def __post_init__(self) -> None:
        self.log = PartitionLog.open(HERE, self.log_format, self.disk)

    def do(self, step: str, number: int) -> None:
        """One step. The log refuses it exactly if the disk does."""
        if step in ("crash", "kill"):
            self.disk.room = 1 << 62
            self.disk.before_change = lambda: None
        if step == "crash":
            self.disk.crash(random.Random(number))
            self.open_again(all_forced=True)
        elif step == "kill":
            self.disk.kill()
            self.open_again(all_forced=False)
        elif step == "die":
            self.disk.before_change = dying_in(number)
        elif step == "fail":
            self.disk.fail_next_force()
        elif step == "room":
            self.disk.room = 50 * number
        else:
            try:
                self.write(step, number)
            except DiskFull:
                self.disk.room = 1 << 62
            except StorageFailure:
                assert self.log.failed is not None
                self.distrusted = True
            except Died:
                self.disk.before_change = lambda: None
                self.disk.room = 1 << 62
                self.disk.kill()
                self.open_again(all_forced=False, died=True)

    def write(self, step: str, number: int) -> None:
        log = self.log
        if step in ("append", "mark", "follow"):
            self.put(step, number)
        elif step == "flush":
            log.flush()
            self.forced = len(self.told)
        elif step == "roll":
            log.roll()
            self.forced = self.start + sum(len(table) for table in log.tables()[:-1])
        elif step == "retain":
            log.housekeep(NOW, log.end.offset)
        elif step == "tidy":
            while (put_shorter := log.drop_tail()) is not None:
                put_shorter()
        elif log.failed is None:
            self.shorten(step, number)

    def put(self, step: str, number: int) -> None:
        """Appends a batch, a marker, or this many entries of a leader."""
        log, end = self.log, self.log.end
        kind = Kind.ABORT if step == "mark" else Kind.DATA
        rows = [(int(end.entry), int(kind), number, int(end.offset), number * (step == "append"))]
        if step == "follow":
            found = leader_of(log, number)
            rows = rows_of_tables([found.rows])
        taken, untouched = 0, log.failed is not None
        try:
            if step == "append":
                batch = self.log_format.prepare(records(int(end.offset), number), NOW)
                log.append(batch, EPOCH, NOW, Stamp(1, 1, 0, number))
            elif step == "mark":
                log.mark(kind, 1, 1, number, EPOCH, NOW)
            else:
                taken = len(log.append_entries(found.rows, found.data)) - len(rows)
        except StorageFailure:
            if log.failed is not None and not untouched:
                self.refused = rows  # the disk may have them or not
            raise
        except DiskFull:
            # Whole entries of a leader may have been written before the refusal, and undone. A
            # power cut may bring them back: they are those of the leader.
            self.refused = rows if step == "follow" else []
            raise
        except Died:
            self.refused = rows
            raise
        self.refused = []
        if taken < 0 and log.failed is not None:
            self.refused, self.distrusted = rows[taken:], True
        self.told += rows[: len(rows) + taken]
        rolled = sum(len(table) for table in log.tables()[:-1])
        self.forced = max(self.forced, self.start + rolled)
        if self.log_format.settings.flush is Flush.BATCH:
            self.forced = len(self.told)

    def shorten(self, step: str, number: int) -> None:
        """Cuts off this many entries, or all."""
        log, before = self.log, (self.log.start, self.log.end, rows_of(self.log))
        self.cut_to, forced = max(self.start, int(log.end.entry) - number), self.forced
        if step == "reset":
            self.cut_to, self.reset_to = (
                self.start,
                Boundary(EntryIndex(number), Offset(2 * number)),
            )
        self.forced = min(forced, self.cut_to)
        try:
            if step == "reset":
                log.reset(Boundary(EntryIndex(number), Offset(2 * number)))
            else:
                assert log.truncate(EntryIndex(self.cut_to)) == log.end
        except DiskFull:
            assert (log.start, log.end, rows_of(log)) == before
            self.cut_to = self.reset_to = None
            raise
        self.told = [NO_ROW] * number if step == "reset" else self.told[: self.cut_to]
        self.forced = len(self.told)
        self.cut_to = self.reset_to = None
        self.ended = step

    @property
    def start(self) -> int:
        return int(self.log.start.entry)

    def open_again(self, *, all_forced: bool, died: bool = False) -> None:
        start, before, failed = self.start, self.log.start, self.log.failed or died
        log = self.log = PartitionLog.open(HERE, self.log_format, self.disk)
        found = rows_of(log)
        if self.reset_to is not None and not found:
            assert log.start == log.end
            assert log.end in (self.reset_to, Boundary(EntryIndex(0), Offset(0)), before)
            self.told, self.refused, start = [NO_ROW] * self.start, [], self.start
            self.forced = self.cut_to = self.start
        assert self.start >= start or failed, "what could not be removed may be back"
        whole = [*self.told, *self.refused]
        assert found == whole[self.start : self.start + len(found)]
        assert self.start + len(found) >= self.forced
        if not all_forced:
            least = len(self.told) if self.cut_to is None else self.cut_to
            assert self.start + len(found) >= least
        if not all_forced or self.sure:
            assert log.intact or self.distrusted
        assert not self.sure or not any("hole" in cut.reason for cut in log.cuts)
        known = [each for each in found if each[1] == Kind.DATA]
        expected = pa.Table.from_batches([records(each[3], each[4]) for each in known], logs.SCHEMA)
        assert everything(log).equals(expected)
        self.told = self.told[: self.start] + found
        self.refused = []
        self.forced = len(self.told) if all_forced else self.forced
        self.cut_to = self.reset_to = None
        self.distrusted = False


def leader_of(log: PartitionLog, number: int) -> StoredEntries:
    """This many entries of a leader whose log continues this one."""
    leader = new_log()
    leader.reset(log.end)
    for place in range(number):
        if place % 3 == 2:
            leader.mark(Kind.ABORT, 1, 1, place, EPOCH, NOW)
        else:
            batch = log.format.prepare(records(int(leader.end.offset), 1 + place), NOW)
            leader.append(batch, EPOCH, NOW, Stamp(1, 1, place, place))
    found = leader.read_entries(log.end.entry, 1 << 20)
    assert found is not None
    return found


STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("append"), st.integers(1, 30)),
        st.tuples(st.just("append"), st.integers(1, 30)),
        st.tuples(
            st.sampled_from(["mark", "flush", "roll", "retain", "tidy", "fail"]), st.integers(1, 3)
        ),
        st.tuples(st.sampled_from(["truncate", "follow"]), st.integers(1, 9)),
        st.tuples(st.just("reset"), st.integers(0, 3)),
        st.tuples(st.just("room"), st.integers(0, 30)),
        st.tuples(st.just("die"), st.integers(0, 20)),
        st.tuples(st.sampled_from(["crash", "kill"]), st.integers(0, 1 << 20)),
    ),
    max_size=24,
)


@settings(max_examples=examples(300), deadline=None)
@example([("room", 11), ("die", 16), ("append", 1), ("reset", 0)], Flush.NONE, 3, 0)
@example([("room", 23), ("follow", 2)], Flush.NONE, 3, 236)
@given(STEPS, st.sampled_from(Flush), st.sampled_from([3, 1 << 18]), st.integers(0, 1 << 20))
def test_log_has_a_prefix_with_all_forced_entries_after_any_crash(
    steps, flush, segment_entries, seed
):
    log_format = format_of(flush=flush, segment_entries=segment_entries, retention_bytes=4000)
    run = Run(SimulatedDisk(), log_format)
    for step, number in steps:
        run.do(step, number)
    run.do("crash", seed)
    end = run.log.end
    run.do("append", 2)
    assert (run.log.end.entry, run.log.end.offset) == (end.entry + 1, end.offset + 2)


@pytest.mark.parametrize("earlier", [0, 1, 3])
@pytest.mark.parametrize("step", ["append", "mark"])
@pytest.mark.parametrize("seed", range(8))
def test_undone_append_does_not_reappear_after_a_failed_fsync(earlier, step, seed):
    """After that, another process opens the log, before a power cut."""
    run = Run(SimulatedDisk(), format_of(flush=Flush.BATCH))
    for _ in range(earlier):
        run.do("append", 1)
    run.do("fail", 1)
    run.do(step, 1)
    run.do("kill", 0)
    run.do("crash", seed)


def test_log_opens_again_after_a_failed_fsync_in_a_reset():
    """There is a file with a schema message, but no entries file to force."""
    run = Run(SimulatedDisk(), format_of())
    run.do("reset", 1)
    run.do("fail", 1)
    run.do("reset", 0)
    run.do("crash", 0)


@pytest.mark.quick("batch")
@pytest.mark.slow
@pytest.mark.parametrize("flush", list(Flush))
def test_log_survives_a_crash_at_any_step_of_its_first_append(flush):
    """The files of a log are made with its first entry. The process dies at any step of that."""
    changes = 0
    while True:
        for seed in range(24):
            run = Run(SimulatedDisk(), format_of(flush=flush))
            run.do("die", changes)
            run.do("append", 3)
            whole = bool(run.told)
            if seed % 2:
                run.do("crash", seed)  # with a power cut too
            run.do("append", 2)
            run.do("crash", seed)
            run.do("append", 1)
            run.do("crash", seed)
        if whole:
            return
        changes += 1


@pytest.mark.parametrize("changes", range(14))
def test_log_opens_on_a_full_disk_after_an_interrupted_roll(changes):
    run = Run(SimulatedDisk(), format_of())
    run.do("append", 3)
    run.disk.before_change = dying_in(changes)
    with suppress(Died):
        run.log.roll()
    run.disk.before_change = lambda: None
    run.disk.kill()
    run.disk.room = 0
    run.open_again(all_forced=False)
    assert run.log.end.offset == 3
    run.disk.room = 1 << 62
    run.do("append", 2)
    run.do("crash", 1)
    assert run.start == 0


SHAPES = {
    "the active segment": ["append"] * 6,
    "one before it": ["append", "append", "roll", "append", "append", "roll", "append", "append"],
    "at the start of one": ["append", "append", "append", "roll", "append", "append"],
    "with nothing behind it": ["append", "append", "roll", "append", "append", "append", "roll"],
    "only markers": ["append", "roll", "mark", "mark", "append", "mark", "mark"],
    "the first of all": ["append", "append", "append"],
    "of a log that was cut before": ["append"] * 5 + ["truncate"] + ["append"] * 2,
    "empty, and begun elsewhere": ["reset", "append", "truncate"],
    "its tail dropped": ["append"] * 5 + ["truncate", "tidy", "append"],
}


@pytest.mark.quick(
    "truncate-1-the active segment",
    "truncate-1-only markers",
    "truncate-1-its tail dropped",
    "truncate-3-the first of all",
    "truncate-3-empty, and begun elsewhere",
    "reset-2-at the start of one",
    "reset-2-with nothing behind it",
    "truncate-3-of a log that was cut before",
)
@pytest.mark.rule(
    "a log is cut back or reset, and no reader notices",
    "storage/log/truncation.py",
    "storage/segment/segment.py",
)
@pytest.mark.slow
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize(("step", "back"), [("truncate", 1), ("truncate", 3), ("reset", 2)])
def test_log_survives_a_crash_at_any_step_of_a_truncation(shape, back, step):
    """The process dies before any change of the disk, with or without a power cut then or later."""
    changes = 0
    while True:
        for seed in range(4):
            flush = Flush.BATCH if seed % 3 else Flush.NONE
            run = Run(SimulatedDisk(), format_of(flush=flush), sure=flush is Flush.BATCH)
            for number, before in enumerate(SHAPES[shape]):
                run.do(before, number + 1 if before != "truncate" else 2)
            run.ended = ""
            run.do("die", changes)
            run.do(step, back)
            whole = run.ended == step
            run.do("kill", 0)
            if seed % 2:
                run.do("crash", seed)
            for after in (3, 2):
                run.do("append", after)
                run.do("crash", seed + after)
        if whole:
            return
        changes += 1


@settings(max_examples=examples(60), deadline=None)
@given(st.data())
def test_flipped_bits_are_never_served_and_no_byte_is_deleted(data):
    """Bits flip in any file. Cut bytes are in the folder ``cut``."""
    disk = SimulatedDisk()
    run = Run(disk, format_of(segment_entries=3))
    for number in range(1, data.draw(st.integers(2, 12))):
        run.do("append", number)
    if data.draw(st.booleans()):
        run.log.close()
    paths = [path for path in disk.files() if path.suffix == ".entries" or path.suffix == ".arrow"]
    for _ in range(data.draw(st.integers(1, 3))):
        path = data.draw(st.sampled_from(paths))
        size = len(disk.files()[path])
        if size:
            disk.flip(path, data.draw(st.integers(0, size - 1)), data.draw(st.integers(0, 7)))
    before = disk.files()
    try:
        log = PartitionLog.open(HERE, run.log_format, disk)
    except DamagedSegment:
        assert disk.files() == before
        return
    found = rows_of(log)
    assert found == run.told[: len(found)]
    if len(found) < len(run.told):
        assert log.cuts[0].grave
    for start in range(int(log.end.offset)):
        try:
            (chunk, *_) = log.read(start, log.end.offset)
        except DamagedSegment:
            continue
        assert chunk.batch.column("id").to_pylist()[0] == start
        row = next(each for each in found if each[3] <= start < each[3] + each[4])
        whole = records(row[3], row[4]).slice(start - row[3])
        rows = min(chunk.batch.num_rows, whole.num_rows)
        assert chunk.batch.slice(0, rows).equals(whole.slice(0, rows))
    for path, content in before.items():
        kept = {
            int(each.name.rpartition(".from.")[2]): now
            for each, now in disk.files().items()
            if each.name.startswith(f"{path.name}.from.")
        }
        now = disk.files().get(path)
        moved = [each for each in disk.files() if each.name == path.name and each != path]
        if moved:
            assert disk.files()[moved[0]] == content
        elif kept:
            assert any(content[at:] == tail for at, tail in kept.items())
        elif path.suffix == ".entries":
            assert now is not None
            assert now.startswith(content.rstrip(b"\0"))
