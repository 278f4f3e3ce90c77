"""A lake in a folder, whose rounds run in the test's thread over a real log."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
from msgspec.structs import replace

import isolog
from spark_stream.client.lake_tables import open_table
from spark_stream.consistency.lakes import TopicLake
from spark_stream.lake.delta.actions import Action, RemoveFile, encoded, version_path
from tests.lake.tables import Folder


class LocalLake:
    """A lake of some topics, and its worker. Files have about 16 KiB of the log."""

    def __init__(self, log: isolog.Log, topics: list[str], root: Path) -> None:
        self.name = f"of-{topics[0]}"
        self.folder = Folder(root)
        made = log.create_lake(self.name, topics, root)
        self.lake = TopicLake(made.name, made.id, made.location)
        self._worker = isolog.LakeWorker(log, self.name, round_bytes=1 << 14)

    def run(self) -> None:
        """Copy all committed records."""
        self._worker.run_once()

    def merge(self, topic: str) -> None:
        """Replace all files of a topic's table by one, as another program may, and remove them."""
        table = open_table(self.lake, topic).table
        removed = list(table.files)
        folder = self.folder.root / topic
        whole = pa.concat_tables(
            (pq.read_table(folder / path) for path in removed), promote_options="permissive"
        )
        merged = self.folder.write(f"{topic}/merged.parquet", whole.sort_by("n"))
        merged = replace(merged, data_change=False)
        actions = [Action(remove=RemoveFile(path=path, data_change=False)) for path in removed]
        version = folder / version_path(table.version + 1)
        version.write_bytes(encoded([*actions, Action(add=merged)]))
        for path in removed:
            (folder / path).unlink()
