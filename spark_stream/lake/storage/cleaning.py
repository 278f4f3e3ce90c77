"""The removal of files that no version of a table has.

A worker that was killed, or that lost a race, leaves such files. A put may arrive late and refer to
one. So only files older than a day are removed, and only on request. Files with other names than
isolog's may belong to a commit of another program, and are never removed.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final
from urllib.parse import unquote

from spark_stream.lake.storage.snapshots import read_version
from spark_stream.lake.storage.stores import LakeStore, StoredFile

DAY_MS: Final = 86_400_000
_NAME: Final = re.compile(r"(merged-|[0-9]{5}-)?[0-9]{20}(-[0-9]{20})?-[0-9a-f]{16}\.parquet")
"""The names that the driver gives to files of records, of cuts, and of a merge."""


def orphans(store: LakeStore, name: str, now_ms: int, age_ms: int = DAY_MS) -> list[StoredFile]:
    """Return the old files of isolog in a table's folder that no version has ever had.

    The files are listed first, so that a commit during the call keeps its own. The age is counted
    back from the present or from the latest file, whichever is earlier: a clock that is ahead makes
    no file old.

    Raises:
        LakeUnavailable: The location did not answer.
        LakeStopped: Another program removed the first versions, so their files are unknown.
    """
    found = list(store.list(f"{name}/"))
    now_ms = min(now_ms, max((each.modified_ms for each in found), default=now_ms))
    mentioned = set(_mentioned(store, name))
    return [
        each
        for each in found
        if now_ms - each.modified_ms > age_ms
        and _NAME.fullmatch(each.path.removeprefix(f"{name}/"))
        and each.path not in mentioned
    ]


def _mentioned(store: LakeStore, name: str) -> Iterator[str]:
    version = 0
    while (actions := read_version(store, name, version)) is not None:
        for action in actions:
            for file in (action.add, action.remove):
                if file is not None:
                    yield f"{name}/{unquote(file.path)}"
        version += 1
