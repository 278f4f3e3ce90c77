"""Scripts for the versions of one table: catch up with them, and put the next one."""

from __future__ import annotations

from spark_stream.errors import LakeUnavailable
from spark_stream.lake.delta.actions import Action
from spark_stream.lake.delta.table import Table
from spark_stream.lake.steps import PutVersion, ReadVersion, Script


def catch_up(table: Table) -> Script[None]:
    """Apply the versions of a table that are new."""
    while (actions := (yield from ReadVersion(table.at, table.version + 1))) is not None:
        table.apply(table.version + 1, actions)


def put(table: Table, actions: list[Action]) -> Script[None]:
    """Put the next version, and catch up. Whether it was written shows in the table's state."""
    try:
        yield from PutVersion(table.at, table.version + 1, actions)
    except LakeUnavailable:
        version = table.version
        yield from catch_up(table)
        if table.version == version:
            raise
    else:
        yield from catch_up(table)
