"""A log with an altered schema: each segment has one schema, and a read converts all to one."""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import event, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from isolog.errors import DamagedSegment, SchemaMismatch, UnknownSchema
from spark_stream.batches import conformed, facts_of, header_length
from spark_stream.consistency.entries import Kind
from spark_stream.consistency.ids import EntryIndex, LeaderEpoch, Offset
from spark_stream.schema.schemas import stored_schema
from spark_stream.sql.filters import row_filter
from spark_stream.storage.format.log_format import LogFormat
from spark_stream.storage.format.stored import digest
from spark_stream.storage.log.log import PartitionLog
from spark_stream.storage.segment.segment import Segment
from spark_stream.storage.settings import Compression, LogSettings
from tests.examples import examples
from tests.simulation.disk import SimulatedDisk
from tests.storage.disks import Died, dying_in
from tests.storage.logs import FACTS, NOW
from tests.storage.replicas import HERE, fetch

SCHEMAS = (
    pa.schema([pa.field("id", pa.int32(), nullable=False), ("x", pa.int16())]),
    pa.schema(
        [pa.field("id", pa.int64(), nullable=False), ("x", pa.int16()), ("name", pa.string())]
    ),
    pa.schema([("id", pa.int64()), ("x", pa.float64()), ("name", pa.string()), ("y", pa.int8())]),
)
LAST = len(SCHEMAS) - 1


def format_of(version: int = LAST, **given) -> LogFormat:
    """The format of a log whose topic had the schemas up to this one."""
    chosen = replace(LogSettings(), **given)
    return LogFormat(SCHEMAS[version], chosen, facts=FACTS, earlier=SCHEMAS[:version])


def records(version: int, first: int, rows: int) -> pa.RecordBatch:
    """Records for the offsets from ``first`` on."""
    schema = SCHEMAS[version]
    numbers = list(range(first, first + rows))
    values = {
        "id": numbers,
        "x": [None if n % 5 == 0 else n % 1000 for n in numbers],
        "name": [f"name {n}" for n in numbers],
        "y": [n % 100 for n in numbers],
    }
    columns = [pa.array(values[each.name], each.type) for each in schema]
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def append(log: PartitionLog, version: int, rows: int = 3) -> pa.RecordBatch:
    batch = records(version, int(log.end.offset), rows)
    log.append(format_of(version).prepare(batch, NOW), LeaderEpoch(0), NOW)
    return batch


def mark(log: PartitionLog) -> None:
    log.mark(Kind.COMMIT, 7, 0, 7, LeaderEpoch(0), NOW)


def read(log: PartitionLog, schema: pa.Schema, columns: list[str] | None = None) -> pa.Table:
    chunks = list(log.read(log.start.offset, log.end.offset, columns, schema=schema))
    wanted = schema if columns is None else pa.schema([schema.field(name) for name in columns])
    return pa.Table.from_batches([chunk.batch for chunk in chunks], wanted)


def check(log: PartitionLog, appended: list[pa.RecordBatch]) -> None:
    """The log has these records, in any schema of its topic. Each segment has one schema."""
    for schema in SCHEMAS:
        known = [conformed(batch, schema) for batch in appended]
        whole = pa.Table.from_batches(known, schema)
        assert read(log, schema).equals(whole)
        some = schema.names[::-2]
        assert read(log, schema, some).equals(whole.select(some))
        assert read(log, schema, []).num_columns == 0
    for segment in log.segments:
        table = segment.table
        batches = table[table["kind"] == Kind.DATA]
        assert set(batches["schema"].tolist()) <= {segment.codec.version}
        assert not table[table["kind"] != Kind.DATA]["schema"].any()


@dataclass
class Story:
    """A log, and its expected records. ``formats``: the formats with which it may be opened."""

    log_format: LogFormat
    disk: SimulatedDisk = field(default_factory=SimulatedDisk)
    appended: list[pa.RecordBatch] = field(default_factory=list)
    entries: list[int | None] = field(default_factory=list)  # rows of a batch, or None for a marker

    def __post_init__(self) -> None:
        self.log = PartitionLog.open(HERE, self.log_format, self.disk)

    def do(self, step: str, number: int) -> None:
        log = self.log
        if step == "append":
            self.appended.append(append(log, number % len(SCHEMAS), 1 + number % 4))
            self.entries.append(self.appended[-1].num_rows)
        elif step == "mark":
            mark(log)
            self.entries.append(None)
        elif step == "roll":
            log.roll()
        elif step == "close":
            log.close()
            self.log = PartitionLog.open(HERE, self.log_format, self.disk)
        elif step == "crash":
            log.flush()
            self.disk.crash(random.Random(number))
            self.log = PartitionLog.open(HERE, self.log_format, self.disk)
        elif step == "truncate":
            end = number % (len(self.entries) + 1)
            log.truncate(EntryIndex(end))
            self.entries = self.entries[:end]
            self.appended = self.appended[: sum(rows is not None for rows in self.entries)]
        elif step == "tidy":
            while (put_shorter := log.drop_tail()) is not None:
                put_shorter()


STEPS = st.sampled_from(
    ["append"] * 6 + ["mark", "mark", "roll", "close", "crash", "truncate", "tidy"]
)


@pytest.mark.rule(
    "the schema of a batch in the log, and its segment",
    "storage/log/log.py",
    "storage/format/log_format.py",
)
@pytest.mark.slow
@settings(max_examples=examples(500), deadline=None)
@given(
    st.lists(st.tuples(STEPS, st.integers(0, 60)), max_size=25),
    st.sampled_from([400, 1500, 1 << 20]),
    st.sampled_from(Compression),
    st.sampled_from([100, 600, 1 << 20]),
)
def test_replicas_have_equal_entries_across_any_schemas(
    steps: list[tuple[str, int]], segment_bytes: int, compression: Compression, frame: int
) -> None:
    story = Story(format_of(segment_bytes=segment_bytes, compression=compression))
    follower = PartitionLog.open(Path("/f/0"), format_of(segment_bytes=1000), SimulatedDisk())
    for step, number in steps:
        if step == "truncate":
            follower.truncate(
                min(follower.end.entry, EntryIndex(number % (len(story.entries) + 1)))
            )
        story.do(step, number)
        if step in ("roll", "mark"):
            fetch(follower, story.log, frame)
    check(story.log, story.appended)
    fetch(follower, story.log, frame)
    assert digest(follower.tables()) == digest(story.log.tables())
    assert follower.end == story.log.end
    check(follower, story.appended)
    story.do("close", 0)
    check(story.log, story.appended)
    event(f"{len({batch.schema for batch in story.appended})} schemas")


@pytest.mark.parametrize("markers", [0, 1, 3])
@pytest.mark.parametrize("behind", [False, True], ids=["first segment", "later segment"])
def test_crash_during_the_change_of_an_empty_segments_schema_loses_nothing(
    markers: int, behind: bool
) -> None:
    step, ended = 0, False
    while not ended:
        disk = SimulatedDisk()
        log = PartitionLog.open(HERE, format_of(0), disk)
        appended = [append(log, 0)] if behind else []
        log.roll()
        for _ in range(markers):
            mark(log)
        if not behind and not markers:  # an empty segment that has files
            append(log, 0)
            log.truncate(EntryIndex(0))
        log.flush()
        log.format = format_of()
        disk.before_change = dying_in(step)
        try:
            append(log, 2)
            ended = True
        except Died:
            pass
        disk.before_change = lambda: None
        for how in ("kill", "crash"):
            if how == "kill":
                disk.kill()
            else:
                disk.crash(random.Random(step))
            again = PartitionLog.open(HERE, format_of(), disk)
            kept = int(again.end.entry) - markers - len(appended)
            assert kept in (0, 1)
            assert kept or not ended or how == "crash"
            check(again, [*appended, *([records(2, int(log.start.offset) + 3 * behind, 3)] * kept)])
            assert (
                sum(int((table["kind"] == Kind.COMMIT).sum()) for table in again.tables())
                == markers
            )
            assert not any(cut.entries_lost for cut in again.cuts) or how == "crash"
        more = append(again, 1)
        assert read(again, SCHEMAS[0]).slice(again.end.offset - 3).to_batches() == [
            conformed(more, SCHEMAS[0])
        ]
        step += 1
    assert step > 2


def test_each_segment_has_its_schema_and_is_a_stream_for_any_reader(tmp_path: Path) -> None:
    log = PartitionLog.open(tmp_path / "log", format_of())
    written = [append(log, version) for version in (0, 0, 2, 1, 1, 2)]
    assert [segment.codec.version for segment in log.segments] == [0, 2, 1, 2]
    log.close()
    for segment in log.segments:
        version = segment.codec.version
        with pa.ipc.open_stream(segment.name.arrow) as stream:
            assert stream.schema.equals(SCHEMAS[version])
            found = stream.read_all()
        mine = [batch for batch in written if batch.schema.equals(SCHEMAS[version])]
        assert found.num_rows in (3, sum(batch.num_rows for batch in mine))
        header = pa.py_buffer(segment.name.arrow.read_bytes())
        facts = facts_of(header.slice(0, header_length(header) or 0))
        assert facts is not None
        assert facts["isolog.base_offset"] == str(segment.first.offset)


def test_batch_of_an_unknown_schema_is_refused_before_any_write(tmp_path: Path) -> None:
    leader = PartitionLog.open(tmp_path / "leader", format_of())
    follower = PartitionLog.open(tmp_path / "follower", format_of(0))
    first = append(leader, 0)
    append(leader, 2)
    append(leader, 2)
    found = leader.read_entries(EntryIndex(1), 1 << 20)
    assert found is not None
    before = leader.read_entries(EntryIndex(0), 1 << 20, EntryIndex(1))
    assert before is not None
    follower.append_entries(before.rows, before.data)
    for rows in (found.rows, found.rows[:1]):
        data = found.data.slice(0, int(rows["length"].sum()))
        with pytest.raises(
            UnknownSchema, match=r"schema 2, but the latest schema known here is 0"
        ) as caught:
            follower.append_entries(rows, data)
        assert caught.value.retriable
    assert follower.end.entry == 1
    assert read(follower, SCHEMAS[0]).to_batches() == [first]
    follower.format = format_of()
    follower.append_entries(found.rows, found.data)
    assert digest(follower.tables()) == digest(leader.tables())


def test_log_with_an_unrecorded_schema_is_refused_unchanged(tmp_path: Path) -> None:
    log = PartitionLog.open(tmp_path / "log", format_of())
    written = [append(log, 0), append(log, 2)]
    log.close()
    with pytest.raises(DamagedSegment, match="schema 2"):
        PartitionLog.open(tmp_path / "log", format_of(0))
    check(PartitionLog.open(tmp_path / "log", format_of()), written)


def test_damaged_schema_message_is_rewritten_in_the_segments_schema(
    tmp_path: Path,
) -> None:
    log = PartitionLog.open(tmp_path / "log", format_of())
    written = [append(log, 2), append(log, 0)]
    log.close()
    path = log.segments[-1].name.arrow
    sound = path.read_bytes()
    at = sound.index(b"isolog.topic")
    path.write_bytes(sound[:at] + b"I" + sound[at + 1 :])
    again = PartitionLog.open(tmp_path / "log", format_of())
    assert "its schema message was damaged" in again.cuts[0].reason
    check(again, written)
    assert path.read_bytes() == sound


def test_value_beyond_the_readers_schema_ends_the_read(tmp_path: Path) -> None:
    log = PartitionLog.open(tmp_path / "log", format_of())
    append(log, 0)
    wide = pa.record_batch(
        [pa.array([1 << 40]), pa.array([0.5]), pa.nulls(1, pa.string()), pa.nulls(1, pa.int8())],
        schema=SCHEMAS[2],
    )
    log.append(log.format.prepare(wide, NOW), LeaderEpoch(0), NOW)
    assert read(log, SCHEMAS[2], ["id"]).column("id").to_pylist() == [0, 1, 2, 1 << 40]
    with pytest.raises(SchemaMismatch, match="'id': the value 1099511627776"):
        read(log, SCHEMAS[0])
    counted = log.read(Offset(0), log.end.offset, [], schema=SCHEMAS[0])
    assert sum(chunk.batch.num_rows for chunk in counted) == 4


@pytest.mark.parametrize(
    ("text", "first", "later"),
    [
        ("id >= 4000", 1, 1),  # whole numbers keep their keys
        ("x > 900", 4, 4),  # a double has other keys than a smallint
        ("name = 'name 5'", 1, 0),  # without such a column, there is no name
        ("name IS NULL", 4, 3),
        ("y = 7", 1, 1),
    ],
)
def test_filter_in_the_present_schema_reads_batches_of_all_schemas(
    tmp_path: Path, text: str, first: int, later: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = PartitionLog.open(tmp_path / "log", format_of())
    written = [
        append(log, 0, 1000),
        append(log, 0, 1000),
        append(log, 0, 1000),
        append(log, 2, 2000),
    ]
    everything = pa.concat_tables(
        pa.Table.from_batches([conformed(batch, SCHEMAS[2])]) for batch in written
    )
    places: list[int] = []
    real = Segment.decode

    def decode(segment: Segment, rows: np.ndarray, *wanted):
        places.extend(segment.first.entry + rows)
        return real(segment, rows, *wanted)

    monkeypatch.setattr(Segment, "decode", decode)
    chosen = row_filter(text, "t", SCHEMAS[2], 0)

    def filtered() -> pa.Table:
        places.clear()
        chunks = log.read(Offset(0), log.end.offset, rows=chosen, schema=SCHEMAS[2])
        return pa.Table.from_batches([chunk.batch for chunk in chunks], SCHEMAS[2])

    n = everything.column("id").to_numpy()
    x = everything.column("x").to_numpy()
    expected = {
        "id >= 4000": n >= 4000,
        "x > 900": np.nan_to_num(x, nan=-1) > 900,
        "name = 'name 5'": np.zeros(len(n), bool),
        "name IS NULL": n < 3000,
        "y = 7": (n >= 3000) & (n % 100 == 7),
    }[text]
    for batches in (first, later):  # the later read uses the statistics of the first
        assert filtered().equals(everything.filter(pa.array(expected)))
        assert len(places) == batches


def test_moments_are_truncated_to_microseconds_after_an_alteration() -> None:
    kind = pa.struct([("at", pa.timestamp("ns")), ("took", pa.duration("ns"))])
    values = pa.array([{"at": 1_700_000_000_123_456_789, "took": 1_001}, None], kind)
    batch = pa.RecordBatch.from_arrays([values.field(0), values], names=["at", "nested"])
    found = conformed(batch, stored_schema(batch.schema))
    assert found["at"].cast(pa.int64()).to_pylist()[0] == 1_700_000_000_123_456
    assert found["nested"].field(1).cast(pa.int64()).to_pylist()[0] == 1
    assert found["nested"].null_count == 1
