"""The state of a table in a location: its last checkpoint, and the versions after it."""

from __future__ import annotations

from spark_stream.errors import LakeStopped
from spark_stream.lake.delta.actions import LOG, Action, decoded, version_path
from spark_stream.lake.delta.table import Table
from spark_stream.lake.storage.checkpoints import read_checkpoint
from spark_stream.lake.storage.stores import LakeStore


def read_table(store: LakeStore, name: str, version: int | None = None) -> Table:
    """Return a table at a version, by default the last one. Version -1 has no table.

    Raises:
        LakeUnavailable: The location did not answer.
        LakeStopped: A version is damaged.
    """
    table = read_checkpoint(store, name, version) or Table(name)
    refresh(store, table, version)
    return table


def refresh(store: LakeStore, table: Table, version: int | None = None) -> None:
    """Apply the versions of a table that are new, up to a version.

    Raises: as :func:`read_table`.
    """
    while version is None or table.version < version:
        actions = read_version(store, table.at, table.version + 1)
        if actions is None:
            return
        table.apply(table.version + 1, actions)


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
