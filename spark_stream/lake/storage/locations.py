"""The checks of a location before a lake is created there.

A lake writes and removes files in its location. So it is apart from the files of brokers, of other
Delta tables, and of other lakes.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final
from urllib.parse import unquote, urlsplit

from spark_stream.directories import APART_HINT, overlap
from spark_stream.errors import InvalidOption, LakeStopped
from spark_stream.lake.cuts import CUTS
from spark_stream.lake.delta.actions import LOG
from spark_stream.lake.delta.table import LAKE
from spark_stream.lake.storage.snapshots import read_table
from spark_stream.lake.storage.stores import LakeStore, check_store, open_store

_LOG_MARK: Final = "isolog.json"
"""A file in the directory of each log and of each broker."""


def check_apart(location: str, lakes: Mapping[str, str]) -> None:
    """Check that a location is apart from those of other lakes.

    ``lakes``: their locations by name.

    Raises:
        InvalidOption: One of the locations is in the other.
    """
    mine = _resolved(location)
    for name, other in sorted(lakes.items()):
        relation = overlap(mine, _resolved(other))
        if relation is not None:
            raise InvalidOption(
                f"{location} {relation} the location of the lake {name}: {other}",
                hint=APART_HINT,
                option="location",
            )


@contextmanager
def no_folder_on_error(location: str) -> Iterator[None]:
    """Remove the folders that were created at a location since, if the context fails."""
    folder = _folder(location)
    missing = [] if folder is None else [folder, *folder.parents]
    missing = [each for each in missing if not each.exists()]
    try:
        yield
    except BaseException:
        with suppress(OSError):  # one of them is in use
            for each in missing:
                each.rmdir()
        raise


def _folder(location: str) -> Path | None:
    """Return the folder of a location, or None for one in an object store."""
    url = urlsplit(location)
    if url.scheme not in ("", "file"):
        return None
    return Path(unquote(url.path) if url.scheme else location).resolve()


def _resolved(location: str) -> str:
    """Return a location without the symbolic links of this host."""
    folder = _folder(location)
    return location if folder is None else str(folder)


def check_location(
    location: str, cluster: str, topics: Mapping[str, str], lake_id: str | None = None
) -> None:
    """Check that a location can be written, and has no files of brokers or tables of others.

    ``topics``: ids by name. ``lake_id``: of the lake whose tables were copied there.

    Raises:
        InvalidOption: The location has files of a broker, or its address cannot be used.
        Unsupported: The location replaces files that exist, or is of an unknown kind.
        LakeUnavailable: The location did not answer, or refused.
        LakeStopped: The location is a table or inside one, or has tables of others.
    """
    folder = _folder(location)
    if folder is not None:
        _check_folder(folder, topics)
    store = open_store(location)
    check_store(store)
    if next(iter(store.list(f"{LOG}/0")), None) is not None:
        raise _in_table(location)
    check_tables(store, cluster, {**topics, CUTS: ""}, lake_id)


def check_tables(
    store: LakeStore, cluster: str, topics: Mapping[str, str], lake_id: str | None
) -> None:
    """Check that a location has no tables of others for these topics.

    ``lake_id``: of the lake that may have tables there.

    Raises:
        LakeUnavailable, LakeStopped: As :func:`check_location`.
    """
    for name, of in topics.items():
        table = read_table(store, name)
        if table.version < 0:
            continue
        if name != CUTS:
            table.check(cluster, of)
        found = {} if table.metadata is None else table.metadata.configuration
        if lake_id is None or found.get(LAKE) != lake_id:
            raise LakeStopped(
                f"the location has the table {name} of the lake with id {found.get(LAKE)}",
                hint="Choose another location. Tables of a dropped lake stay where they are.",
                table=name,
            )


def _check_folder(folder: Path, topics: Mapping[str, str]) -> None:
    for table in topics:
        for each in [folder / table, folder, *folder.parents]:
            if (each / _LOG_MARK).exists():
                raise InvalidOption(
                    f"the tables of the location {folder} would be in the directory of a log:"
                    f" {each}",
                    hint="Choose another folder, outside the directories of brokers.",
                    option="location",
                )
    for each in folder.parents:
        if (each / LOG).is_dir():
            raise _in_table(str(each))


def _in_table(place: str) -> LakeStopped:
    return LakeStopped(
        f"the location of the lake is in a Delta table: {place}",
        hint="Choose a folder beside it. The table's VACUUM would remove the lake's files.",
    )
