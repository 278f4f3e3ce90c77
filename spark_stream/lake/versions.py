"""Scripts for the versions of one table: catch up with them, and put the next one.

**Expired versions.** Versions are put if absent, and the oldest ones are removed (``expiry.py``). A
worker that was paused for longer than the expiry would find no next version, put one at the place
of an expired one, and take it for a part of the table. So each table has a *floor*: a version with
a checkpoint, recorded before a version below it is removed. It never moves back.

:func:`catch_up` reads the floor after the versions. If the first new version is not below it, none
of them had been removed when they were read, however long the worker was paused. Otherwise the
state is dropped, and read again from the checkpoint at the floor. This includes the result of
:func:`put`. A late put may leave a file below the floor, which no state begins with.
"""

from __future__ import annotations

from typing import Final

from spark_stream.errors import LakeStopped, LakeUnavailable
from spark_stream.lake.delta.actions import Action
from spark_stream.lake.delta.table import Table
from spark_stream.lake.steps import (
    PutVersion,
    ReadCheckpoint,
    ReadFloor,
    ReadVersion,
    Script,
    SyncTable,
)


def catch_up(table: Table) -> Script[None]:
    """Apply the versions of a table that are new, or read it again if they may have expired.

    Raises:
        LakeStopped: The checkpoint at the floor was removed.
    """
    if table.version < 0 and (found := (yield from ReadCheckpoint(table.at))) is not None:
        table.become(found)
    while True:
        while (actions := (yield from ReadVersion(table.at, table.version + 1))) is not None:
            table.apply(table.version + 1, actions)
        floor = yield from ReadFloor(table.at)
        if table.checked + 1 >= floor:
            table.checked = table.version
            return
        table.become((yield from at_floor(table.at)))


def at_floor(name: str) -> Script[Table]:
    """Return a table at its floor, or without a version if none has expired.

    Raises:
        LakeStopped: The checkpoint at the floor was removed.
    """
    missing = 0
    while floor := (yield from ReadFloor(name)):
        found = yield from ReadCheckpoint(name, floor)
        if found is not None:
            return found
        if missing == floor:
            raise LakeStopped(
                f"the checkpoint {floor} of the table {name} was removed",
                hint="The versions below it have expired. Restore the file from a backup.",
                table=name,
                version=floor,
            )
        missing = floor
    return Table(name)


PUTS_MAX: Final = 5
"""The number of attempts of a commit."""


def put(table: Table, actions: list[Action], *, may_retry: bool = False) -> Script[None]:
    """Put the next version, and catch up. Whether it was written shows in the table's state.

    ``may_retry``: the caller reads this state and puts again, so an outage is no error.
    """
    try:
        yield from _put(table, actions)
    except LakeUnavailable:
        if not may_retry:
            raise


def _put(table: Table, actions: list[Action]) -> Script[None]:
    try:
        yield from PutVersion(table.at, table.version + 1, actions)
    except LakeUnavailable:
        version = table.version
        yield from catch_up(table)
        if table.version == version:
            raise
    else:
        yield from catch_up(table)


def confirm(table: Table) -> Script[None]:
    """Check that the files of the new versions are whole, and make these versions durable.

    A worker that was suspended for a day may have put a version whose files were cleaned up as
    orphans. A crash of a file server may have truncated one. Nobody relies on an offset of a table
    before this check. It compares sizes: files have checksums for their content.

    Raises:
        LakeStopped: A file is missing, or its size is not that in the table's log.
    """
    while table.confirmed != table.version:
        sizes = {path: table.files[path].size for path in sorted(table.unconfirmed)}
        lost = yield from SyncTable(table.at, sizes)
        if not lost:
            table.confirmed, table.unconfirmed = table.version, set()
            return
        yield from catch_up(table)  # others may have merged these files, and removed them
        if any(each in table.unconfirmed for each in lost):
            raise LakeStopped(
                f"the table {table.at} has files that were removed or truncated, the first"
                f" one {lost[0]}",
                hint="Restore them. If `isolog lake clean` removed them during the suspension of a"
                " worker, or a crash truncated them, the log still has their records. Then drop the"
                " lake, and create one at another location. It lacks what local retention has"
                " removed.",
                table=table.at,
            )
