"""The driver of a lake's scripts: steps become calls to brokers and files in the location.

**A round is bounded.** A partition contributes about ``round_bytes`` stored bytes, unless a larger
transaction begins there. ``is_behind`` is set if this limited the last cut.

**Time is that of the worker or of the brokers**, whichever is earlier. So a clock that is ahead
removes no rows and no files early.

**Lost records show.** A cut is never below ``lower``, so the driver compares the last stable offset
of each partition with the table's offset first, and returns the smaller one.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, TypeVar

import pyarrow as pa

from spark_stream.client.connecting.connection import ClusterConnection
from spark_stream.client.reading.columns import View
from spark_stream.client.reading.fetching import Source
from spark_stream.client.reading.ranges import read_range
from spark_stream.client.topics import TopicsClient, cut_of
from spark_stream.consistency.isolation import Isolation
from spark_stream.consistency.lakes import LakeDescription
from spark_stream.errors import LakeUnavailable, UnknownTopic
from spark_stream.lake import steps
from spark_stream.lake.cuts import CUT, CUTS, CUTS_SCHEMA, rows_of_cut
from spark_stream.lake.data_files import DataFile
from spark_stream.lake.delta.actions import AddFile, encoded, version_path
from spark_stream.lake.delta.schema import (
    OFFSET,
    PARTITION,
    TIMESTAMP,
    arrow_schema,
    table_schema,
)
from spark_stream.lake.delta.table import Table
from spark_stream.lake.merging import range_of
from spark_stream.lake.reading import read_rows
from spark_stream.lake.storage.checkpoints import write_checkpoint
from spark_stream.lake.storage.files import write_rows
from spark_stream.lake.storage.snapshots import delete_files, put_floor, read_step, sync_table
from spark_stream.lake.storage.stores import LakeStore
from spark_stream.lake_worker.counts import Ends, WorkerCounts
from spark_stream.schema.schemas import is_default
from spark_stream.steps import Script, Step, run_script
from spark_stream.wire.messages import EARLIEST
from spark_stream.wire.topic_messages import AskedTopic, PartitionOffsets

T = TypeVar("T")
ROUND_BYTES: Final = 256 << 20


class Driver:
    """The driver of one worker, for one thread."""

    def __init__(
        self,
        connection: ClusterConnection,
        topics: TopicsClient,
        lake: LakeDescription,
        store: LakeStore,
        counts: WorkerCounts,
        round_bytes: int = ROUND_BYTES,
    ) -> None:
        self._connection = connection
        self._topics = topics
        self._lake = lake
        self._store = store
        self._counts = counts
        self._round_bytes = round_bytes
        self._brokers_ms: int | None = None
        self._noted_s = 0.0
        self._known_ranges: dict[str, dict[str, dict[int, tuple[int, int]]]] = {}
        """By table and path, the offsets of the mixed files that a table has at present."""
        self.topics: dict[str, steps.TopicState] = {}
        """The topics at the last description."""
        self.is_behind = False
        """Whether the last cut was limited, so that the next round need not wait."""
        self.ends: Ends = {}
        """The ends of the committed records at the last cut."""
        self.limit: Ends | None = None
        """The ends that no cut exceeds, or None. Other partitions do not move then."""
        self.merged_bytes = 0
        """The bytes of files that were merged, also without a commit."""
        self.looked_s = 0.0
        """The time of the last cut, on the monotonic clock."""

    def run(self, script: Script[T]) -> T:
        """Drive a script to its end. Raise its error."""
        return run_script(script, self._carry_out)

    def _carry_out(self, step: Step[Any]) -> Any:
        match step:
            case steps.Now():
                return self.now_ms()
            case steps.NewMark():
                return secrets.token_hex(16)
            case steps.DescribeTopics():
                return self._describe()
            case steps.FindCut(lower, versions):
                return self._find_cut(lower, versions)
            case steps.SyncTable(table, sizes):
                return sync_table(self._store, table, sizes)
            case steps.PutFloor(table, floor):
                return put_floor(self._store, table, floor)
            case steps.DeleteFiles(table, paths):
                return delete_files(self._store, table, paths)
            case steps.PutVersion(table, version, actions):
                return self._put(f"{table}/{version_path(version)}", encoded(actions))
            case steps.WriteFiles(topic, ranges):
                return self._write_files(topic, ranges)
            case steps.WriteCut(cut):
                return self._write_cut(cut)
            case steps.MergeFiles(table, files, schema):
                return self._merge(table, files, arrow_schema(schema))
            case steps.FindRanges(table, files):
                return self._ranges(table, files)
            case steps.WriteCheckpoint(table):
                return write_checkpoint(self._store, table)
        return read_step(self._store, step)

    def note_clock(self, brokers_ms: int | None) -> None:
        """Record the present time of the brokers' clock."""
        self._brokers_ms, self._noted_s = brokers_ms, time.monotonic()

    def now_ms(self) -> int:
        """Return the present time of this machine or of the brokers, whichever is earlier."""
        now_ms = time.time_ns() // 1_000_000
        if self._brokers_ms is None:
            return now_ms
        passed_ms = int(1_000 * (time.monotonic() - self._noted_s))
        return min(now_ms, self._brokers_ms + passed_ms)

    def _put(self, path: str, data: bytes) -> bool:
        with self._counts.commits.time():
            put = self._store.put_if_absent(path, data)
        self._counts.conflicts += not put
        return put

    # -- topics ---------------------------------------------------------------------------------

    def _describe(self) -> dict[str, steps.TopicState]:
        found = {}
        for each in self._lake.topics:
            try:
                topic = self._topics.describe(each.name)
            except UnknownTopic:
                continue
            if topic.id != each.id:
                continue  # it was deleted and created again
            starts = {}
            for at in topic.partitions:
                if at.log_start_offset is None:
                    raise at.error or LakeUnavailable(f"partition {at.partition} has no leader")
                starts[at.partition] = at.log_start_offset
            found[topic.name] = steps.TopicState(
                topic.name,
                topic.id,
                topic.schema,
                starts,
                *_table_retention(topic.config),
                schema_version=topic.schema_version,
            )
        self.topics = found
        return found

    def _find_cut(
        self, lower: Mapping[str, Mapping[int, int]], schema_versions: Mapping[str, int]
    ) -> dict[str, dict[int, int]]:
        ids = {each.name: each.id for each in self._lake.topics if each.name in lower}
        self.looked_s = time.monotonic()
        asked = [
            AskedTopic(topic=name, isolation=Isolation.READ_COMMITTED, schema_version=True)
            for name in lower
        ]
        found = self._look_up(asked)
        ends = {name: found[name].offsets for name in lower}
        self.ends = {(name, n): at for name, of in ends.items() for n, at in of.items()}
        wanted = self._wanted(lower, ends)
        upper = self._limits(lower, wanted)
        self.is_behind = any(
            at < wanted[name].get(number, 0) for (name, number), at in upper.items()
        )
        flat = {(name, n): at for name, found in lower.items() for n, at in found.items()}
        cut: dict[str, dict[int, int]] = {name: {} for name in lower}
        is_beyond = False
        for (name, number), at in cut_of(self._connection, ids, lower=flat, upper=upper).items():
            end = ends[name].get(number, at)
            cut[name][number] = end if end < flat.get((name, number), 0) else at
            is_beyond |= cut[name][number] > end
        if is_beyond:  # transactions overlap: the cut has records later than the look-up
            found = self._look_up(asked)
        return {
            name: at
            for name, at in cut.items()
            if found[name].schema_version <= schema_versions[name]
        }

    def _look_up(self, asked: Sequence[AskedTopic]) -> Mapping[str, PartitionOffsets]:
        """Look up offsets. Raise UnknownTopic for a topic that was deleted."""
        bounds = self._topics.look_up(asked)
        for error in bounds.unknown.values():
            raise error
        return bounds.topics

    def _wanted(
        self, lower: Mapping[str, Mapping[int, int]], ends: Mapping[str, Mapping[int, int]]
    ) -> Mapping[str, Mapping[int, int]]:
        """Return the ends, or the limit where it is smaller. No table moves back."""
        limit = self.limit
        if limit is None:
            return ends
        return {
            name: {
                number: min(end, max(limit.get((name, number), 0), lower[name].get(number, 0)))
                for number, end in found.items()
            }
            for name, found in ends.items()
        }

    def _limits(
        self, lower: Mapping[str, Mapping[int, int]], ends: Mapping[str, Mapping[int, int]]
    ) -> dict[tuple[str, int], int]:
        """Return the offset of each partition that a round's bytes reach."""
        budgets = {
            name: {
                number: (at, ends[name][number], self._round_bytes)
                for number, at in found.items()
                if at < ends[name].get(number, 0)
            }
            for name, found in lower.items()
        }
        asked = [
            AskedTopic(topic=name, partitions=sorted(each), at=EARLIEST, budgets=each)
            for name, each in budgets.items()
            if each
        ]
        reached = self._look_up(asked) if asked else {}
        limits = {}
        for name, found in lower.items():
            for number, at in found.items():
                limit = None
                if number in budgets[name]:
                    limit = reached[name].partitions[number].reached
                limits[name, number] = ends[name].get(number, at) if limit is None else limit
        return limits

    # -- the location ---------------------------------------------------------------------------

    def _write_files(
        self, topic: steps.TopicState, ranges: Mapping[int, tuple[int, int]]
    ) -> list[AddFile]:
        schema = table_schema(topic.name, topic.schema)
        found = []
        for partition, (first, end) in sorted(ranges.items()):
            name = f"{partition:05d}-{first:020d}-{end:020d}-{secrets.token_hex(8)}.parquet"
            batches = self._rows(topic, partition, first, end)
            file = write_rows(self._store, topic.name, name, schema, batches)
            if file is not None:
                found.append(file)
                self._counts.written_files += 1
                self._counts.written_bytes += file.size
                self._counts.written_records += file.statistics.records
        return found

    def _rows(
        self, topic: steps.TopicState, partition: int, first: int, end: int
    ) -> Iterator[pa.RecordBatch]:
        """Yield the committed rows of a range, with the columns of the table."""
        view = View.of(topic.name, topic.schema, metadata=True, headers=True)
        isolation = Isolation.READ_COMMITTED
        source = Source(self._topics.router, view, topic.id, partition, isolation)
        at = first
        for fetched in read_range(source, first, end):
            at = fetched.next
            if fetched.batch.num_rows:
                yield _with_places(fetched.batch, topic)
        if at < end:
            raise LakeUnavailable(
                f"the leader of partition {partition} of topic {topic.name!r} returned records up"
                f" to {at}, not {end}",
                hint="The worker tries again.",
            )

    def _write_cut(self, cut: steps.Cut) -> AddFile:
        name = f"{cut.number:020d}-{secrets.token_hex(8)}.parquet"
        file = write_rows(self._store, CUTS, name, CUTS_SCHEMA, [rows_of_cut(cut)])
        assert file is not None
        return file

    def _ranges(self, table: str, files: list[AddFile]) -> dict[str, dict[int, tuple[int, int]]]:
        """Return the offsets of files that other programs wrote, by path and partition."""
        known = self._known_ranges.setdefault(table, {})
        for path in known.keys() - {each.path for each in files}:
            del known[path]
        for each in files:
            if each.path not in known:
                known[each.path] = self._range_of(table, each)
        return dict(known)

    def _range_of(self, table: str, file: AddFile) -> dict[int, tuple[int, int]]:
        rows = DataFile(self._store, table, file).read([PARTITION, OFFSET])
        found = rows.group_by(PARTITION).aggregate([(OFFSET, "min"), (OFFSET, "max")])
        return {
            row[PARTITION]: (row[f"{OFFSET}_min"], row[f"{OFFSET}_max"])
            for row in found.to_pylist()
        }

    def _merge(self, table: str, files: list[AddFile], schema: pa.Schema) -> AddFile:
        if table == CUTS:
            return self._merge_cuts(files)
        ranges = [at for each in files if (at := range_of(each)) is not None]
        first, end = min(at.first for at in ranges), max(at.last for at in ranges) + 1
        part, partition = (
            Table(table, files={each.path: each for each in files}),
            ranges[0].partition,
        )
        batches = (
            each.append_column(PARTITION, pa.repeat(pa.scalar(partition, pa.int32()), len(each)))
            for each in read_rows(self._store, part, partition, first, end, schema.names)
        )
        name = f"merged-{first:020d}-{end:020d}-{secrets.token_hex(8)}.parquet"
        merged = write_rows(self._store, table, name, schema, batches, data_change=False)
        assert merged is not None
        self.merged_bytes += sum(each.size for each in files)
        return merged

    def _merge_cuts(self, files: list[AddFile]) -> AddFile:
        found = [DataFile(self._store, CUTS, each).read() for each in files]
        rows = pa.concat_tables(found).sort_by(CUT)
        name = f"{rows.column(CUT)[0].as_py():020d}-{secrets.token_hex(8)}.parquet"
        merged = write_rows(
            self._store, CUTS, name, CUTS_SCHEMA, rows.to_batches(), data_change=False
        )
        assert merged is not None
        return merged


def _table_retention(config: Mapping[str, str]) -> tuple[int, int]:
    """Return the retention of a topic's table by time and by size, -1 without a limit.

    Without ``local.retention.*`` the settings of the topic are those of its log alone.
    """
    if all(int(config.get(f"local.retention.{unit}", -1)) < 0 for unit in ("ms", "bytes")):
        return -1, -1
    return int(config.get("retention.ms", -1)), int(config.get("retention.bytes", -1))


def _with_places(batch: pa.RecordBatch, topic: steps.TopicState) -> pa.RecordBatch:
    """Name the columns of a topic with Kafka's columns as those of its table."""
    if not is_default(topic.schema):
        return batch
    names = {PARTITION: "partition", OFFSET: "offset", TIMESTAMP: "timestamp"}
    fields = [*topic.schema.names, *names]
    arrays = [batch.column(names.get(each, each)) for each in fields]
    return pa.RecordBatch.from_arrays(arrays, names=fields)
