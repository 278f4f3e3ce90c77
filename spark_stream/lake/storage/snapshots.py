"""The state of a table in a location: its last checkpoint, and the versions after it.

A floor (``lake/versions.py``) is an empty file that is named by its version. The greatest one is
valid, and is never removed. So a smaller one that is written late does not move the floor back.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any, Final
from urllib.parse import unquote

from spark_stream.errors import LakeStopped
from spark_stream.lake import steps
from spark_stream.lake.cleaning import find_orphans
from spark_stream.lake.delta.actions import LOG, Action, decoded, version_path
from spark_stream.lake.delta.table import Table
from spark_stream.lake.steps import StoredFile
from spark_stream.lake.storage.checkpoints import last_checkpoint, read_checkpoint
from spark_stream.lake.storage.stores import LakeStore
from spark_stream.lake.versions import catch_up
from spark_stream.steps import Step, run_script

FLOORS: Final = "_isolog"
"""The folder of a table's floors. Programs for Delta skip folders that begin with ``_``."""

_LOG_NAME: Final = re.compile(r"([0-9]{20})\.(.+)")


def read_table(store: LakeStore, name: str, version: int | None = None) -> Table:
    """Return a table at a version, by default the last one. Version -1 has no table.

    Raises:
        LakeUnavailable: The location did not answer.
        LakeStopped: A version is damaged, or has expired.
    """
    table = Table(name)
    if version is not None and version < (floor := read_floor(store, name)):
        raise LakeStopped(
            f"version {version} of the table {name} has expired: the first one is {floor}",
            hint="The property delta.logRetentionDuration of the table sets the time.",
            table=name,
            version=version,
        )
    refresh(store, table, version)
    return table


def refresh(store: LakeStore, table: Table, version: int | None = None) -> None:
    """Apply the versions of a table that are new, up to a version.

    Raises: as :func:`read_table`.
    """
    run_script(catch_up(table), lambda step: read_step(store, step, version))


def orphans(store: LakeStore, name: str, now_ms: int) -> list[StoredFile]:
    """Return the old files of isolog in a table's folder that no version has.

    Raises: as :func:`read_table`.
    """
    return run_script(find_orphans(name, now_ms), lambda step: read_step(store, step))


def read_step(store: LakeStore, step: Step[Any], limit: int | None = None) -> Any:
    """Carry out a step that reads a table's log. ``limit``: the last version to read.

    Raises: as :func:`read_table`.
    """
    match step:
        case steps.ReadVersion(table, version):
            return (
                None
                if limit is not None and version > limit
                else (read_version(store, table, version))
            )
        case steps.ReadCheckpoint(table, version):
            return _checkpoint(store, table, version, limit)
        case steps.ReadFloor(table):
            return read_floor(store, table)
        case steps.ListFiles(table):
            return list(store.list(f"{table}/"))
        case steps.ListLog(table):
            return list(_list_log(store, table))
    raise AssertionError(step)


def _checkpoint(
    store: LakeStore, name: str, version: int | None, limit: int | None
) -> Table | None:
    if version is not None:
        return read_checkpoint(store, name, version)
    last = last_checkpoint(store, name)
    found = None
    if last is not None and (limit is None or last <= limit):
        found = read_checkpoint(store, name, last)
    if found is None and (floor := read_floor(store, name)):
        found = read_checkpoint(store, name, floor)
    return found


def read_version(store: LakeStore, name: str, version: int) -> list[Action] | None:
    """Return the actions of a version, or None if it does not exist.

    Raises:
        LakeUnavailable: The location did not answer.
        LakeStopped: The version is damaged, or version 0 was removed below later ones.
    """
    path = f"{name}/{version_path(version)}"
    data = store.read(path)
    if data is None and version == 0:
        later = {each.path for each in store.list(f"{name}/{LOG}/0")}
        if later and path not in later:
            raise LakeStopped(
                f"the first versions of the table {name} were removed",
                hint="Another program expired them. Restore them, or create a lake at another"
                " location.",
                table=name,
            )
        data = store.read(path) if later else None
    return None if data is None else decoded(name, version, data)


def _list_log(store: LakeStore, name: str) -> Iterable[steps.LogFile]:
    for each in store.list(f"{name}/{LOG}/0"):
        short = each.path.removeprefix(f"{name}/{LOG}/")
        if found := _LOG_NAME.fullmatch(short):
            yield steps.LogFile(f"{LOG}/{short}", int(found[1]), found[2], each.modified_ms)


# -- floors ---------------------------------------------------------------------------------------


def read_floor(store: LakeStore, name: str) -> int:
    """Return the floor of a table, or 0.

    Raises:
        LakeUnavailable: The location did not answer.
    """
    return max(_floors(store, name), default=0)


def put_floor(store: LakeStore, name: str, floor: int) -> None:
    """Record a floor durably, and remove smaller ones.

    Raises:
        LakeUnavailable: The location did not answer.
    """
    store.put_if_absent(_floor_path(name, floor), b"")
    for each in _floors(store, name):
        if each < floor:
            store.delete(_floor_path(name, each))


def _floors(store: LakeStore, name: str) -> list[int]:
    prefix = f"{name}/{FLOORS}/"
    names = [each.path.removeprefix(prefix) for each in store.list(prefix)]
    return [int(each) for each in names if each.isdigit()]


def _floor_path(name: str, floor: int) -> str:
    return f"{name}/{FLOORS}/{floor:020d}"


_LISTED_MIN: Final = 100


def sync_table(store: LakeStore, name: str, sizes: Mapping[str, int]) -> list[str]:
    """Make the folders of a table durable. Return the paths of files that lack these sizes.

    Raises:
        LakeUnavailable: The location did not answer.
    """
    store.sync(f"{name}/{LOG}")
    store.sync(name)
    paths = {each: f"{name}/{unquote(each)}" for each in sizes}
    if len(paths) < _LISTED_MIN:
        have = {path: store.size(path) for path in paths.values()}
    else:
        have = {each.path: each.size for each in store.list(f"{name}/")}
    return [each for each, path in paths.items() if have.get(path) != sizes[each]]


def delete_files(store: LakeStore, name: str, paths: Iterable[str]) -> None:
    """Delete files of a table. Paths are relative to it, and percent-encoded."""
    for each in paths:
        store.delete(f"{name}/{unquote(each)}")
