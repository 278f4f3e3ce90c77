"""The state of a table, read from its location."""

from __future__ import annotations

from spark_stream.lake.delta.actions import decoded, version_path
from spark_stream.lake.delta.table import Table
from spark_stream.lake.storage.stores import LakeStore


def read_table(store: LakeStore, name: str, version: int | None = None) -> Table:
    """Return a table at a version, by default the last one. Without any, its version is -1.

    Raises:
        LakeUnavailable: The location did not answer.
        LakeStopped: A version is damaged.
    """
    table = Table(name)
    while version is None or table.version < version:
        number = table.version + 1
        data = store.read(f"{name}/{version_path(number)}")
        if data is None:
            break
        table.apply(number, decoded(name, number, data))
    return table
