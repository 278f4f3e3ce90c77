"""A round of a lake: one atomic cut of its topics becomes one version of each table.

The order of effects:

1. **Catch up**: apply the new versions of the table of cuts, then those of the other tables.
2. **Cut**: request an atomic cut at or above the offsets of all tables. If a topic got columns or
   partitions since its description, the round ends: its files would lack their values.
3. **Files**: write the records between a table's offsets and the cut. No version has them yet.
4. **Commit**: put the next version of each table, with the files and the new offsets of all its
   partitions. So a version has either all partitions of the cut or none.
5. **Record**: add a row to the table of cuts, with the version of each table, if each table has a
   version with exactly the offsets of the cut.

A worker may stop after any effect, and others may run the same round. A commit begins where the
offsets of its table end, and versions are put only if absent. So of two commits of the same records
one is refused, and the loser finds the records in the table. **Files are never removed here**: a
late put may still refer to them.

**A topic that was deleted** is not part of the next rounds. Its table stays as it is, also if there
is another topic of its name: the lake has the id of the first one.

A cut between 4 and 5 may stay without a row, if another worker has moved a table beyond it. The
other worker then records its own cut.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

import pyarrow as pa
from msgspec.structs import replace

from spark_stream.errors import LakeStopped
from spark_stream.lake.cuts import CUTS, CUTS_SCHEMA
from spark_stream.lake.delta.actions import Action, AddFile, Txn, commit_info
from spark_stream.lake.delta.schema import table_schema, widened
from spark_stream.lake.delta.table import (
    CLUSTER,
    LAKE,
    TOPIC_ID,
    Table,
    application,
    first_actions,
    first_application,
)
from spark_stream.lake.steps import (
    Cut,
    CutEntry,
    DescribeTopics,
    FindCut,
    NewMark,
    Now,
    ReadVersion,
    Script,
    TopicState,
    WriteCheckpoint,
    WriteCut,
    WriteFiles,
)
from spark_stream.lake.versions import PUTS_MAX, catch_up, put
from spark_stream.structs import Positional

Offsets = Mapping[int, int]


@dataclass
class Lake:
    """A lake's settings, and the tables as this worker knows them."""

    id: str
    cluster: str
    topics: list[str]
    tables: dict[str, Table] = field(default_factory=dict)
    properties: dict[str, str] = field(default_factory=dict)
    """Further properties of new tables."""
    recorded: Mapping[str, Offsets] = field(default_factory=dict)
    """By topic id, the offsets that workers have read back. They are older than each round."""
    checkpoint_every: int = 10
    """The number of versions between two checkpoints of a table."""

    def __post_init__(self) -> None:
        for name in [*self.topics, CUTS]:
            self.tables.setdefault(name, Table(name))

    @property
    def cuts(self) -> Table:
        """The table of cuts. Its offsets are those of the last recorded cut."""
        return self.tables[CUTS]

    @property
    def application(self) -> str:
        """The application id whose version is the number of the last cut."""
        return f"isolog:{self.id}"


def run_round(lake: Lake) -> Script[bool]:
    """Bring the tables to a new cut. Return False if a table or topic changed.

    Raises:
        LakeStopped: A person has to decide about a table or a topic.
        LakeUnavailable: The location did not answer. A later round continues.
    """
    topics = yield from DescribeTopics()
    if not topics:
        raise LakeStopped(
            "all topics of the lake were deleted",
            hint="Its tables stay as they are. Drop the lake.",
        )
    yield from _open_tables(lake, topics)
    starts = {name: _starts(lake, topics[name]) for name in topics}
    lower = {
        name: {
            p: log_start if (at := starts[name][p]) is None else at
            for p, log_start in topics[name].log_starts.items()
        }
        for name in topics
    }
    versions = {name: topic.schema_version for name, topic in topics.items()}
    cut = yield from FindCut(lower, versions)
    if any(name not in cut or cut[name].keys() != lower[name].keys() for name in topics):
        return False  # a topic got columns or partitions, or was deleted
    files = {}
    for name in topics:
        ends = _checked_ends(lake.tables[name], cut[name], lower[name])
        ranges = {p: (first, ends[p]) for p, first in lower[name].items() if first < ends[p]}
        files[name] = (yield from WriteFiles(topics[name], ranges)) if ranges else []
    for name in topics:
        change = Change(topics[name], starts[name], cut[name], files[name])
        if not (yield from _commit(lake, lake.tables[name], change)):
            return False
    recorded = yield from _record(lake, topics, cut)
    for table in lake.tables.values():
        if table.version - table.checkpoint >= lake.checkpoint_every:
            yield from WriteCheckpoint(table)
            table.checkpoint = table.version
    return recorded


# -- tables ---------------------------------------------------------------------------------------


def _open_tables(lake: Lake, topics: Mapping[str, TopicState]) -> Script[None]:
    """Catch up with the cuts first, so that no recorded cut is beyond the tables."""
    yield from _open_table(lake, lake.cuts, lake.id, CUTS_SCHEMA)
    for name, topic in topics.items():
        schema = table_schema(name, topic.schema)
        yield from _open_table(lake, lake.tables[name], topic.id, schema)


def _open_table(lake: Lake, table: Table, of: str, schema: pa.Schema) -> Script[None]:
    before = table.version
    yield from catch_up(table)
    is_same = before >= 0 and table.version == before
    if is_same and (yield from ReadVersion(table.at, before)) is None:
        yield from catch_up(table)
        if table.version == before:  # else it expired during a pause of this worker
            raise _missing(table, f"version {before} was there before")
    if table.version < 0:
        if recorded := _recorded_of(lake, of):
            raise _missing(table, f"the brokers recorded its offsets {recorded}")
        mark, now_ms = (yield from NewMark()), (yield from Now())
        configuration = {CLUSTER: lake.cluster, TOPIC_ID: of, LAKE: lake.id} | lake.properties
        actions = first_actions(table.at, schema, mark, configuration, now_ms)
        yield from put(table, [commit_info("CREATE TABLE", now_ms, mark), *actions])
    table.check(lake.cluster, of)


def _recorded_of(lake: Lake, of: str) -> Offsets:
    """Return the recorded offsets of a topic, or of any topic for the table of cuts."""
    tables = lake.recorded.values() if of == lake.id else [lake.recorded.get(of, {})]
    return next((each for each in tables if any(each.values())), {})


def _missing(table: Table, reason: str) -> LakeStopped:
    return LakeStopped(
        f"the table {table.at} is not in the location of the lake: {reason}",
        hint="Mount or restore the location, and start the worker again. If the files are lost,"
        " drop the lake and create one at another location, which copies the records of the log.",
        table=table.at,
    )


# -- offsets --------------------------------------------------------------------------------------


def _starts(lake: Lake, topic: TopicState) -> dict[int, int | None]:
    """Return the table's offset of each partition, and check it against records and log.

    The log comes last: after the restore of an older copy its start is no fault of retention.
    """
    table, starts = lake.tables[topic.name], {}
    brokers = lake.recorded.get(topic.id, {})
    for partition, log_start in topic.log_starts.items():
        at = table.offset(topic.id, partition)
        starts[partition] = at
        recorded = max(brokers.get(partition, 0), lake.cuts.offset(topic.id, partition) or 0)
        if (at or 0) < recorded:
            has = "has no offset" if at is None else f"ends at offset {at}"
            raise LakeStopped(
                f"the table {table.at} {has} of partition {partition}, before the last recorded"
                f" offset ({recorded}): an older copy of it was restored",
                hint="Restore the newer copy, or create a lake at another location.",
                table=table.at,
                partition=partition,
            )
        if at is not None and at < log_start:
            raise LakeStopped(
                f"the table {table.at} ends at offset {at} of partition {partition}, and the log"
                f" starts at {log_start}: retention removed records that the table lacks",
                hint="Create a lake at another location, and give the topic a longer retention.",
                table=table.at,
                partition=partition,
            )
    return starts


def _checked_ends(table: Table, cut: Offsets, lower: Offsets) -> Offsets:
    for partition, first in lower.items():
        if cut[partition] < first:
            raise LakeStopped(
                f"the log ends at offset {cut[partition]} of partition {partition}, before the"
                f" table {table.at} ({first}): the cluster lost committed records",
                hint="The table has them. Create a lake at another location for later records.",
                table=table.at,
                partition=partition,
            )
    return cut


# -- commits --------------------------------------------------------------------------------------


class Change(Positional):
    """A move of a topic's table from ``starts`` to ``ends``, with the records between."""

    topic: TopicState
    starts: Mapping[int, int | None]
    ends: Offsets
    files: list[AddFile]


def _commit(lake: Lake, table: Table, change: Change) -> Script[bool]:
    """Commit a change exactly once.

    Return True if the table has these records now, by this commit, an earlier attempt or another
    worker. Return False if its offsets are between.
    """
    topic, ends = change.topic, change.ends
    mark = yield from NewMark()
    for attempt in range(PUTS_MAX):
        table.check(lake.cluster, topic.id)
        have = {partition: table.offset(topic.id, partition) for partition in ends}
        if all(at is not None and at >= ends[partition] for partition, at in have.items()):
            return True
        if have != {partition: change.starts[partition] for partition in ends}:
            return False
        now_ms = yield from Now()
        actions = [commit_info("WRITE", now_ms, mark, {"mode": "Append"})]
        actions += _schema_change(table, table_schema(topic.name, topic.schema))
        actions += _txns(topic.id, {p: at for p, at in ends.items() if at != have[p]}, now_ms)
        for partition, log_start in topic.log_starts.items():
            if have[partition] is None:
                first = Txn(first_application(topic.id, partition), log_start, now_ms)
                actions.append(Action(txn=first))
        actions += [Action(add=each) for each in change.files]
        yield from put(table, actions, may_retry=attempt + 1 < PUTS_MAX)
    return False


def _schema_change(table: Table, wanted: pa.Schema) -> list[Action]:
    assert table.metadata is not None
    text = widened(table.at, table.metadata.schema_string, wanted)
    return [] if text is None else [Action(metadata=replace(table.metadata, schema_string=text))]


def _txns(of: str, offsets: Offsets, now_ms: int) -> Iterable[Action]:
    return [
        Action(txn=Txn(application(of, partition), at, now_ms)) for partition, at in offsets.items()
    ]


def _record(
    lake: Lake, topics: Mapping[str, TopicState], cut: Mapping[str, Offsets]
) -> Script[bool]:
    """Add a cut to the table of cuts. Return False if a table has moved beyond it."""
    entries = []
    for name in topics:
        table, topic_id = lake.tables[name], topics[name].id
        if any(table.offset(topic_id, p) != at for p, at in cut[name].items()):
            return False
        entries.append(CutEntry(name, topic_id, table.moved_at, cut[name]))
    cuts = lake.cuts
    mark = yield from NewMark()
    for attempt in range(PUTS_MAX):
        have = {
            (entry.topic_id, p): cuts.offset(entry.topic_id, p)
            for entry in entries
            for p in entry.offsets
        }
        want = {(entry.topic_id, p): at for entry in entries for p, at in entry.offsets.items()}
        if all(at is not None and at >= want[key] for key, at in have.items()):
            return True  # also by another worker, at this cut or a later one
        now_ms = yield from Now()
        number = cuts.number(lake.application) + 1
        file = yield from WriteCut(Cut(number, now_ms, entries))
        actions = [
            commit_info("WRITE", now_ms, mark, {"mode": "Append"}),
            Action(txn=Txn(lake.application, number, now_ms)),
            Action(add=file),
        ]
        for entry in entries:
            actions += _txns(entry.topic_id, entry.offsets, now_ms)
        yield from put(cuts, actions, may_retry=attempt + 1 < PUTS_MAX)
    return False
