"""The tables of a lake in a folder, read version by version from its files."""

from __future__ import annotations

import json
from pathlib import Path
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.parquet as pq

from spark_stream.lake.delta.actions import decoded, version_path
from spark_stream.lake.delta.table import Table


def table_of(root: Path, name: str, version: int | None = None) -> Table:
    """Return the state of a table at a version, by default the last one."""
    table = Table(name)
    while version is None or table.version < version:
        path = root / name / version_path(table.version + 1)
        if not path.exists():
            break
        table.apply(table.version + 1, decoded(name, table.version + 1, path.read_bytes()))
    return table


def rows_of(root: Path, name: str, version: int | None = None) -> pa.Table:
    """Return the rows of a table by partition and offset, and check the files' statistics."""
    tables = []
    for file in table_of(root, name, version).files.values():
        rows = pq.read_table(root / name / unquote(file.path))
        stats = json.loads(file.stats or "")
        assert stats["numRecords"] == rows.num_rows
        tables.append(rows)
    found = pa.concat_tables(tables, promote_options="default")
    return found.sort_by([("_partition", "ascending"), ("_offset", "ascending")])
