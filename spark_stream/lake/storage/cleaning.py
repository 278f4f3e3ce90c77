"""The removal of files that no version of a table has.

A worker that was killed, or that lost a race, leaves such files. A put may arrive late and refer to
one. So only files older than a day are removed, and only on request.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final
from urllib.parse import unquote

from spark_stream.lake.delta.actions import LOG, decoded, version_path
from spark_stream.lake.storage.stores import LakeStore, StoredFile

DAY_MS: Final = 86_400_000


def orphans(store: LakeStore, name: str, now_ms: int, age_ms: int = DAY_MS) -> list[StoredFile]:
    """Return the old files in a table's folder that no version has ever had.

    The files are listed first, so that a commit during the call keeps its own.

    Raises:
        LakeUnavailable: The location did not answer.
    """
    old = [each for each in store.list(f"{name}/") if now_ms - each.modified_ms > age_ms]
    mentioned = set(_mentioned(store, name))
    return [
        each
        for each in old
        if not each.path.startswith(f"{name}/{LOG}/") and each.path not in mentioned
    ]


def _mentioned(store: LakeStore, name: str) -> Iterator[str]:
    version = 0
    while (data := store.read(f"{name}/{version_path(version)}")) is not None:
        for action in decoded(name, version, data):
            for file in (action.add, action.remove):
                if file is not None:
                    yield f"{name}/{unquote(file.path)}"
        version += 1
