"""The tables of a lake as Iceberg tables, over the same files.

**An Iceberg table is a mirror.** The Delta table remains the only record of offsets. One commit of
the catalog gives the Iceberg table the files of a Delta version, and the snapshot's summary has the
number of that version. So a worker that was killed between both commits leaves an older mirror, and
the next one commits the difference. The version never moves back: the loser of a race reads the
table again, and so does a worker whose answer was lost.

**pyiceberg never repeats a commit and never removes its files.** It deletes the manifests of a
refused commit. A refusal may be the second answer to a commit that succeeded, and the table would
then have lost its manifests. So refusals are hidden from it (``_Refused``).

**Data files belong to the Delta table.** ``gc.enabled=false`` keeps other programs from
their removal. Iceberg's own files are in the folder ``_iceberg`` of the location, where no VACUUM
of a Delta table looks.

Files have no field ids. The table's name mapping has the names of their columns. Iceberg reserves
some names that Delta permits, such as ``_partition``. Such a column gets another name in Iceberg.
"""

from __future__ import annotations

import json
from importlib import import_module
from typing import Any, Final
from urllib.parse import unquote, urlsplit

import pyarrow as pa

from spark_stream.consistency.lakes import LakeDescription
from spark_stream.errors import InvalidOption, IsologError, LakeStopped, LakeUnavailable
from spark_stream.extras import install_hint
from spark_stream.lake.delta.schema import arrow_schema
from spark_stream.lake.delta.table import Table
from spark_stream.lake.expiry import (
    DAY_MS,
    FILE_RETENTION,
    FILE_RETENTION_MS,
    duration_ms,
    earlier,
)
from spark_stream.lake.steps import StoredFile
from spark_stream.lake.storage.stores import LakeStore, first_line

FOLDER: Final = "_iceberg"
VERSION: Final = "isolog.version"
"""The property of a snapshot with the version of the Delta table."""

_OFFSETS: Final = "isolog.offsets"
_DELTA: Final = "isolog.delta.id"
_MAPPING: Final = "schema.name-mapping.default"
_PROPERTIES: Final = {
    "gc.enabled": "false",
    "commit.retry.num-retries": "0",
    "commit.manifest-merge.enabled": "true",
    "write.metadata.delete-after-commit.enabled": "true",
    "write.metadata.previous-versions-max": "20",
}
_RESERVED: Final = {"_partition", "_file", "_pos", "_deleted", "_spec_id", "_row_id"}
_PREFIX: Final = "_topic"
_COMMITS_MAX: Final = 5
_SNAPSHOTS_MAX: Final = 100
"""A commit of pyiceberg copies the list of snapshots 25 times: 1.4 ms of CPU for each snapshot."""


class _Refused(Exception):
    """The catalog refused a commit, or repeated one and refused the second."""


class IcebergTables:
    """The Iceberg tables of a lake, in one catalog.

    Args:
        lake: The lake, with the name of a catalog of pyiceberg's configuration.

    Raises:
        InvalidOption: pyiceberg is missing, or has no catalog of this name.
        LakeUnavailable: The catalog did not answer.
    """

    def __init__(self, lake: LakeDescription) -> None:
        assert lake.iceberg is not None
        self._name, _, namespace = lake.iceberg.partition(".")
        self._namespace = namespace or lake.name
        self._topics = {each.name: each.id for each in lake.topics}
        location = lake.location
        self._root = location if urlsplit(location).scheme else f"file://{location}"
        try:
            self._schemas: Any = import_module("pyiceberg.schema")
            self._mappings: Any = import_module("pyiceberg.table.name_mapping")
            self._files: Any = import_module("pyiceberg.io.pyarrow")
            self._updates: Any = import_module("pyiceberg.table.update.snapshot")
            self._errors: Any = import_module("pyiceberg.exceptions")
            catalogs: Any = import_module("pyiceberg.catalog")
        except ImportError:
            raise InvalidOption(
                "Iceberg tables need the package pyiceberg",
                hint=install_hint("iceberg"),
                option="iceberg",
            ) from None
        try:
            self._catalog = catalogs.load_catalog(self._name)
        except (ValueError, self._errors.NotInstalledError) as error:
            raise InvalidOption(
                f"cannot open the Iceberg catalog {self._name!r}: {first_line(error)}",
                hint="Describe the catalog in ~/.pyiceberg.yaml, or set"
                f" PYICEBERG_CATALOG__{self._name.upper()}__URI.",
                option="iceberg",
            ) from None
        except Exception as error:
            raise self._unavailable(error) from None
        self._commit_table = self._catalog.commit_table
        self._catalog.commit_table = self._commit

    def sync(self, table: Table, now_ms: int) -> None:
        """Give the Iceberg table the files and columns of a Delta table, if its version is newer.

        Snapshots expire by ``now_ms``, as replaced files of the Delta table.

        Raises:
            LakeStopped: The Iceberg table belongs to others, or others changed its rows.
            LakeUnavailable: The catalog or the location did not answer. A later call continues.
        """
        for attempt in range(_COMMITS_MAX):
            try:
                self._sync(table, now_ms)
                return
            except IsologError:
                raise
            except Exception as error:  # pyiceberg, its catalogs and file systems have many
                if attempt + 1 == _COMMITS_MAX:
                    raise self._unavailable(error) from None

    def version(self, delta: Table) -> int:
        """Return the version of a Delta table that its Iceberg table has, or -1 without one.

        Raises: as :meth:`sync`.
        """
        try:
            return self._version(self._catalog.load_table((self._namespace, delta.at)), delta)
        except self._errors.NoSuchTableError:
            return -1
        except IsologError:
            raise
        except Exception as error:
            raise self._unavailable(error) from None

    def orphans(self, store: LakeStore, delta: Table, now_ms: int) -> list[StoredFile]:
        """Return Iceberg's own files that are older than a day and belong to no snapshot.

        Raises: as :meth:`sync`.
        """
        prefix = f"{FOLDER}/{delta.at}/metadata/"
        found = list(store.list(prefix))
        now_ms = earlier(now_ms, found)
        old = [each for each in found if now_ms - each.modified_ms > DAY_MS]
        try:
            table = self._catalog.load_table((self._namespace, delta.at))
            self._version(table, delta)
            used = {table.metadata_location}
            used |= {each.metadata_file for each in table.metadata.metadata_log}
            statistics = [*table.metadata.statistics, *table.metadata.partition_statistics]
            used |= {each.statistics_path for each in statistics}
            for snapshot in table.snapshots():
                used.add(snapshot.manifest_list)
                used |= {each.manifest_path for each in snapshot.manifests(table.io)}
        except self._errors.NoSuchTableError:
            return []
        except IsologError:
            raise
        except Exception as error:
            raise self._unavailable(error) from None
        return [each for each in old if f"{self._root}/{each.path}" not in used]

    # -- one attempt ------------------------------------------------------------------------------

    def _sync(self, delta: Table, now_ms: int) -> None:
        assert delta.metadata is not None
        columns = arrow_schema(delta.metadata.schema_string)
        columns = pa.schema([each.with_name(_shown(each.name)) for each in columns])
        table = self._open(delta, columns)
        behind = self._version(table, delta) < delta.version
        expired = _expired(table, delta, now_ms)
        if not behind and not expired:
            return
        with table.transaction() as changes:
            if expired:
                expiry = self._updates.ExpireSnapshots(transaction=changes)
                expiry.by_ids(expired).commit()
            if behind:
                self._add_snapshot(changes, table, delta, columns)

    def _add_snapshot(self, changes: Any, table: Any, delta: Table, columns: pa.Schema) -> None:
        wanted = {self._address(delta.at, path) for path in delta.files}
        present = {each.file.file_path: each.file for each in table.scan().plan_files()}
        offsets = delta.offsets(self._topics[delta.at])
        summary = {VERSION: str(delta.version), _OFFSETS: json.dumps(offsets)}
        with changes.update_schema() as schema:
            schema.union_by_name(columns)
        metadata = changes.table_metadata
        mapping = self._mapping(metadata.schema())
        if metadata.properties.get(_MAPPING) != mapping:
            changes.set_properties({_MAPPING: mapping})
        update = changes.update_snapshot(snapshot_properties=summary)
        removed = present.keys() - wanted
        with update.overwrite() if removed else update.merge_append() as files:
            for path in sorted(removed):
                files.delete_data_file(present[path])
            added = sorted(wanted - present.keys())
            for each in self._data_files(metadata, table.io, added):
                files.append_data_file(each)

    def _open(self, delta: Table, columns: pa.Schema) -> Any:
        name = self._namespace, delta.at
        try:
            return self._catalog.load_table(name)
        except self._errors.NoSuchTableError:
            pass
        assert delta.metadata is not None
        own = {**_PROPERTIES, _DELTA: delta.metadata.id}
        if not self._catalog.namespace_exists(self._namespace):  # else no permission is needed
            self._catalog.create_namespace_if_not_exists(self._namespace)
        return self._catalog.create_table_if_not_exists(
            name, columns, f"{self._root}/{FOLDER}/{delta.at}", properties=own
        )

    def _version(self, table: Any, delta: Table) -> int:
        """Return the mirrored version. Others may have rewritten the files, but not the rows."""
        name = ".".join(table.name())
        if delta.metadata is None or table.properties.get(_DELTA) != delta.metadata.id:
            raise LakeStopped(
                f"the Iceberg table {name} belongs to another lake or program",
                hint="Drop it in the catalog, or create the lake with another namespace:"
                f" --iceberg {self._name}.NAMESPACE.",
                table=name,
            )
        snapshot = table.current_snapshot()
        while snapshot is not None:
            summary = snapshot.summary
            if summary is not None and VERSION in summary.additional_properties:
                return int(summary.additional_properties[VERSION])
            if summary is None or summary.operation.value != "replace":
                raise LakeStopped(
                    f"the Iceberg table {name} was changed by others, in snapshot"
                    f" {snapshot.snapshot_id}",
                    hint="Roll it back to the snapshot before, or drop it in the catalog without"
                    " its files. The worker then creates it again from the Delta table.",
                    table=name,
                )
            parent = snapshot.parent_snapshot_id
            snapshot = None if parent is None else table.snapshot_by_id(parent)
        return -1

    def _mapping(self, schema: Any) -> str:
        """Return the name mapping: the names of the columns in files, by field id."""
        fields = [
            self._mappings.MappedField(
                field_id=each.field_id, names=[_stored(each.names[0])], fields=each.fields
            )
            for each in schema.name_mapping
        ]
        return str(self._mappings.NameMapping(fields).model_dump_json())

    def _data_files(self, metadata: Any, io: Any, paths: list[str]) -> Any:
        """Return the entries of files by their footers, where columns have the files' names."""
        schema = metadata.schema()
        fields = [each.model_copy(update={"name": _stored(each.name)}) for each in schema.fields]
        stored = self._schemas.Schema(*fields, schema_id=schema.schema_id)
        of_files = metadata.model_copy(update={"schemas": [stored]})
        return self._files.parquet_files_to_data_files(io, of_files, iter(paths))

    def _address(self, topic: str, path: str) -> str:
        path = unquote(path)
        return path if urlsplit(path).scheme else f"{self._root}/{topic}/{path}"

    def _commit(self, *args: Any, **named: Any) -> Any:
        try:
            return self._commit_table(*args, **named)
        except self._errors.CommitFailedException as error:
            raise _Refused(first_line(error)) from None

    def _unavailable(self, error: Exception) -> LakeUnavailable:
        return LakeUnavailable(
            f"the Iceberg catalog {self._name!r} refused an operation: {first_line(error)}",
            hint="Check the catalog and its keys. The Delta table is complete, and the worker tries"
            " again.",
        )


def _expired(table: Any, delta: Table, now_ms: int) -> list[int]:
    """Return the snapshots whose files the Delta table may soon remove, and the first ones."""
    limit_ms = now_ms - duration_ms(delta, FILE_RETENTION, FILE_RETENTION_MS)
    kept = {each.snapshot_id for each in table.metadata.refs.values()}
    found = sorted(table.snapshots(), key=lambda each: each.sequence_number)
    return [
        each.snapshot_id
        for at, each in enumerate(found)
        if each.snapshot_id not in kept
        and (at < len(found) - _SNAPSHOTS_MAX or each.timestamp_ms < limit_ms)
    ]


def _shown(name: str) -> str:
    """Return the name of a column in Iceberg."""
    return f"{_PREFIX}{name}" if name in _RESERVED else name


def _stored(name: str) -> str:
    """Return the name of a column in the files."""
    bare = name.removeprefix(_PREFIX)
    return bare if bare in _RESERVED else name
