"""Tables of a lake in a folder, written file by file."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from spark_stream.lake.delta.actions import Action, AddFile, RemoveFile, Txn
from spark_stream.lake.delta.schema import ADDED, OFFSET, PARTITION, TIMESTAMP, table_schema
from spark_stream.lake.delta.table import (
    CLUSTER,
    TOPIC_ID,
    Table,
    application,
    first_actions,
    first_application,
)

T0_US = 1_700_000_000_000_000


class Folder:
    """The files of a location, which counts those that were opened."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.opened: list[str] = []

    def open_read(self, path: str) -> pa.NativeFile:
        self.opened.append(path)
        return pa.OSFile(str(self.root / path))

    def write(
        self, name: str, rows: pa.Table, *, statistics: bool = True, group_rows: int = 1 << 20
    ) -> AddFile:
        """Write the rows as one file. ``name``: with that of the table."""
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        pq.write_table(rows, path, row_group_size=group_rows, compression="zstd")
        stats = None
        if statistics and rows.num_rows:
            extremes = [pc.min_max(rows.column(each)) for each in (PARTITION, OFFSET)]
            times = pc.min_max(rows.column(TIMESTAMP))
            stats = json.dumps(
                {
                    "numRecords": rows.num_rows,
                    "minValues": {
                        PARTITION: extremes[0]["min"].as_py(),
                        OFFSET: extremes[1]["min"].as_py(),
                        TIMESTAMP: times["min"].as_py().isoformat(timespec="milliseconds"),
                    },
                    "maxValues": {
                        PARTITION: extremes[0]["max"].as_py(),
                        OFFSET: extremes[1]["max"].as_py(),
                        TIMESTAMP: times["max"].as_py().isoformat(timespec="milliseconds"),
                    },
                }
            )
        short = name.partition("/")[2]
        return AddFile(path=short, size=path.stat().st_size, modification_time=0, stats=stats)


def rows_at(places: Iterable[tuple[int, int]], **columns: Sequence[object]) -> pa.Table:
    """Return rows at these places (partition, offset), one second apart by their offset."""
    places = list(places)
    made = {
        PARTITION: pa.array([p for p, _ in places], pa.int32()),
        OFFSET: pa.array([at for _, at in places], pa.int64()),
        TIMESTAMP: pa.array([T0_US + at * 1_000_000 for _, at in places], ADDED.field(2).type),
    }
    return pa.table({**columns, **made})


def new_table(name: str, topic_id: str, schema: pa.Schema, cluster: str = "c1") -> Table:
    """Return an empty table of a topic, at version 0."""
    table = Table(name)
    properties = {CLUSTER: cluster, TOPIC_ID: topic_id}
    table.apply(0, first_actions(name, table_schema(name, schema), "t", properties, 0))
    return table


def commit(table: Table, topic_id: str, ends: dict[int, int], files: Iterable[AddFile]) -> None:
    """Apply a commit of isolog with these offsets and files."""
    actions = [Action(txn=Txn(application(topic_id, p), at, 0)) for p, at in ends.items()]
    actions += [
        Action(txn=Txn(first_application(topic_id, p), 0, 0))
        for p in ends
        if table.first_offset(topic_id, p) is None
    ]
    table.apply(table.version + 1, [*actions, *(Action(add=each) for each in files)])


def replace_files(table: Table, removed: Iterable[str], files: Iterable[AddFile]) -> None:
    """Apply a compaction."""
    actions = [Action(remove=RemoveFile(path=each, data_change=False)) for each in removed]
    table.apply(table.version + 1, [*actions, *(Action(add=each) for each in files)])
