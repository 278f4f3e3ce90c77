"""The removal of files that no version of a table has.

A worker that was killed, or that lost a race, leaves such files. A put may arrive late and refer to
one. So only files older than a day are removed, and only on request. Files with other names than
isolog's may belong to a commit of another program, and are never removed.
"""

from __future__ import annotations

import re
from typing import Final
from urllib.parse import unquote

from spark_stream.lake.expiry import DAY_MS, earlier
from spark_stream.lake.steps import ListFiles, ReadFloor, ReadVersion, Script, StoredFile
from spark_stream.lake.versions import at_floor

TEMPORARY: Final = ".isolog-"
"""The begin of the names of incomplete files."""

_NAME: Final = re.compile(
    r"(merged-|[0-9]{5}-)?[0-9]{20}(-[0-9]{20})?-[0-9a-f]{16}\.parquet"
    rf"|(\w+/)?{re.escape(TEMPORARY)}[0-9a-f]{{16}}"
)
"""The names that the driver gives to files of records, of cuts, and of a merge, and those of files
that are being written."""


def find_orphans(name: str, now_ms: int, age_ms: int = DAY_MS) -> Script[list[StoredFile]]:
    """Return the old files of isolog in a table's folder that no version has.

    The files are listed first, so that a commit during the call keeps its own. The age is counted
    back from the present or from the latest file, whichever is earlier: a clock that is ahead makes
    no file old.

    Raises:
        LakeUnavailable: The location did not answer.
        LakeStopped: Another program removed the first versions, so their files are unknown.
    """
    found = yield from ListFiles(name)
    now_ms = earlier(now_ms, found)
    mentioned = yield from _mentioned(name)
    return [
        each
        for each in found
        if now_ms - each.modified_ms > age_ms
        and _NAME.fullmatch(each.path.removeprefix(f"{name}/"))
        and each.path not in mentioned
    ]


def _mentioned(name: str) -> Script[set[str]]:
    """Return the files of all versions that have not expired."""
    while True:
        table = yield from at_floor(name)
        paths = table.files.keys() | table.removed.keys()
        version = table.version + 1
        while (actions := (yield from ReadVersion(name, version))) is not None:
            files = [file for each in actions for file in (each.add, each.remove)]
            paths |= {each.path for each in files if each is not None}
            version += 1
        if (yield from ReadFloor(name)) <= table.version + 1:
            # else versions expired before they were read
            return {f"{name}/{unquote(each)}" for each in paths}
