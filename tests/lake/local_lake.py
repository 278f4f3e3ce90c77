"""A lake in a folder, whose rounds run in the test's thread over a real log."""

from __future__ import annotations

import itertools
import time
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

import isolog
from spark_stream.batches import conformed
from spark_stream.client.topics import cut_of
from spark_stream.lake import rounds, steps
from spark_stream.lake.delta.actions import (
    Action,
    AddFile,
    RemoveFile,
    decoded,
    encoded,
    version_path,
)
from spark_stream.lake.delta.schema import table_schema
from spark_stream.lake.rounds import Lake
from tests.lake.tables import Folder


class LocalLake:
    """The worker of one lake. It writes small files, so that ranges need several of them."""

    def __init__(self, log: isolog.Log, topics: list[str], root: Path, file_rows: int = 64) -> None:
        self.log = log
        self.folder = Folder(root)
        self.file_rows = file_rows
        cluster = log._connection.cluster_id
        assert cluster is not None
        made = log.create_lake(f"of-{topics[0]}", topics, root)
        self.lake = Lake(made.id, cluster, topics)
        self._names = itertools.count()

    def run(self) -> None:
        """Run one round."""
        script = rounds.run_round(self.lake)
        answer: Any = None
        while True:
            try:
                step = script.send(answer)
            except StopIteration as end:
                done = end.value
                break
            answer = self._carry_out(step)
        assert done

    def merge(self, topic: str) -> None:
        """Replace all files of a topic's table by one, as another program may, and remove them."""
        table = self.lake.tables[topic]
        removed = list(table.files)
        folder = self.folder.root / topic
        whole = pa.concat_tables(pq.read_table(folder / path) for path in removed)
        merged = self.folder.write(f"{topic}/merged.parquet", whole.sort_by("n"))
        actions = [Action(remove=RemoveFile(path=path, data_change=False)) for path in removed]
        self._version(topic, table.version + 1).write_bytes(encoded([*actions, Action(add=merged)]))
        for path in removed:
            (folder / path).unlink()

    def _carry_out(self, step: steps.Step[Any]) -> Any:
        match step:
            case steps.Now():
                return int(time.time() * 1000)
            case steps.NewMark():
                return f"mark-{next(self._names)}"
            case steps.DescribeTopics():
                return {name: self._state(name) for name in self.lake.topics}
            case steps.FindCut():
                ids = {name: self.log.describe(name).id for name in self.lake.topics}
                found: dict[str, dict[int, int]] = {name: {} for name in ids}
                for (name, number), at in cut_of(self.log._connection, ids).items():
                    found[name][number] = at
                return found
            case steps.ReadVersion(table, version):
                path = self._version(table, version)
                return decoded(table, version, path.read_bytes()) if path.exists() else None
            case steps.PutVersion(table, version, actions):
                path = self._version(table, version)
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_bytes(encoded(actions))
                return True
            case steps.WriteFiles(topic, ranges):
                return [
                    file
                    for partition, (first, end) in ranges.items()
                    for file in self._write(topic, partition, first, end)
                ]
            case steps.WriteCut():
                return AddFile(path=f"cut-{next(self._names)}", size=1, modification_time=0)
            case steps.WriteCheckpoint():
                return None
        raise AssertionError(step)

    def _version(self, table: str, version: int) -> Path:
        return self.folder.root / table / version_path(version)

    def _state(self, name: str) -> steps.TopicState:
        found = self.log.describe(name)
        starts = {each.partition: each.log_start_offset or 0 for each in found.partitions}
        return steps.TopicState(name, found.id, found.schema, starts)

    def _write(
        self, topic: steps.TopicState, partition: int, first: int, end: int
    ) -> list[AddFile]:
        schema = table_schema(topic.name, topic.schema)
        rows = self.log.read(
            topic.name,
            start={partition: first},
            end={partition: end},
            partitions=[partition],
            isolation="read_committed",
            columns=topic.schema.names,
            metadata=True,
            lake="never",
        )
        if "_offset" not in rows.schema.names:  # Kafka's columns
            rows = rows.append_column("_partition", rows.column("partition"))
            rows = rows.append_column("_offset", rows.column("offset"))
            rows = rows.append_column("_timestamp", rows.column("timestamp"))
        files = []
        for batch in rows.combine_chunks().to_batches(self.file_rows):
            wide = pa.Table.from_batches([conformed(batch, schema)])
            name = f"{topic.name}/{partition}-{first}-{next(self._names)}.parquet"
            files.append(self.folder.write(name, wide, group_rows=16))
        return files
