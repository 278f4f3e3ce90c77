"""The removal of files that no version of a table has.

A worker that was killed, or that lost a race, leaves such files. A put may arrive late and refer to
one. So only files older than a day are removed, and only on request. Files with other names than
isolog's may belong to a commit of another program, and are never removed.
"""

from __future__ import annotations

import re
from typing import Final
from urllib.parse import unquote

from spark_stream.lake.delta.table import Table
from spark_stream.lake.expiry import DAY_MS, earlier
from spark_stream.lake.storage.snapshots import read_floor, read_table, read_version
from spark_stream.lake.storage.stores import TEMPORARY, LakeStore, StoredFile

_NAME: Final = re.compile(
    r"(merged-|[0-9]{5}-)?[0-9]{20}(-[0-9]{20})?-[0-9a-f]{16}\.parquet"
    rf"|(\w+/)?{re.escape(TEMPORARY)}[0-9a-f]{{16}}"
)
"""The names that the driver gives to files of records, of cuts, and of a merge, and those of files
that are being written."""


def orphans(store: LakeStore, name: str, now_ms: int, age_ms: int = DAY_MS) -> list[StoredFile]:
    """Return the old files of isolog in a table's folder that no version has.

    The files are listed first, so that a commit during the call keeps its own. The age is counted
    back from the present or from the latest file, whichever is earlier: a clock that is ahead makes
    no file old.

    Raises:
        LakeUnavailable: The location did not answer.
        LakeStopped: Another program removed the first versions, so their files are unknown.
    """
    found = list(store.list(f"{name}/"))
    now_ms = earlier(now_ms, found)
    mentioned = _mentioned(store, name)
    return [
        each
        for each in found
        if now_ms - each.modified_ms > age_ms
        and _NAME.fullmatch(each.path.removeprefix(f"{name}/"))
        and each.path not in mentioned
    ]


def _mentioned(store: LakeStore, name: str) -> set[str]:
    """Return the files of all versions that have not expired."""
    while True:
        floor = read_floor(store, name)
        table = read_table(store, name, floor) if floor else Table(name)
        paths = table.files.keys() | table.removed.keys()
        version = table.version + 1
        while (actions := read_version(store, name, version)) is not None:
            files = [file for each in actions for file in (each.add, each.remove)]
            paths |= {each.path for each in files if each is not None}
            version += 1
        if read_floor(store, name) == floor:  # else versions expired before they were read
            return {f"{name}/{unquote(each)}" for each in paths}
