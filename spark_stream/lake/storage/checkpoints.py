"""Checkpoints of a table: its state at a version in one Parquet file, for readers of all kinds.

A checkpoint of isolog has a mark in its footer. **The state of any other checkpoint is not used**:
its writer does not check for changes that stop a worker, for example a restored older version.
"""

from __future__ import annotations

from collections.abc import Iterable
from io import BytesIO
from typing import Any, Final

import msgspec
import pyarrow as pa

from spark_stream.errors import LakeStopped
from spark_stream.lake.delta.actions import LAST_CHECKPOINT, Action, checkpoint_path, version_path
from spark_stream.lake.delta.table import Table
from spark_stream.lake.storage.stores import LakeStore

_MARK: Final = {b"isolog": b"1"}
_TEXTS: Final = pa.map_(pa.string(), pa.string())
_LIST: Final = pa.list_(pa.string())
_SCHEMA: Final = pa.schema(
    {
        "protocol": pa.struct(
            {
                "minReaderVersion": pa.int32(),
                "minWriterVersion": pa.int32(),
                "readerFeatures": _LIST,
                "writerFeatures": _LIST,
            }
        ),
        "metaData": pa.struct(
            {
                "id": pa.string(),
                "name": pa.string(),
                "description": pa.string(),
                "format": pa.struct({"provider": pa.string(), "options": _TEXTS}),
                "schemaString": pa.string(),
                "partitionColumns": _LIST,
                "configuration": _TEXTS,
                "createdTime": pa.int64(),
            }
        ),
        "txn": pa.struct({"appId": pa.string(), "version": pa.int64(), "lastUpdated": pa.int64()}),
        "add": pa.struct(
            {
                "path": pa.string(),
                "partitionValues": _TEXTS,
                "size": pa.int64(),
                "modificationTime": pa.int64(),
                "dataChange": pa.bool_(),
                "stats": pa.string(),
            }
        ),
        "remove": pa.struct(
            {
                "path": pa.string(),
                "deletionTimestamp": pa.int64(),
                "dataChange": pa.bool_(),
                "extendedFileMetadata": pa.bool_(),
                "partitionValues": _TEXTS,
                "size": pa.int64(),
            }
        ),
    }
)


class _LastCheckpoint(msgspec.Struct):
    version: int
    size: int = 0


def write_checkpoint(store: LakeStore, table: Table) -> None:
    """Write the state of a table as a checkpoint of its version.

    A table whose files have deletion vectors, which isolog does not write, gets none. A stopped one
    gets none either, because a checkpoint does not have the reason.

    Raises:
        LakeUnavailable: The location did not answer, or refused.
    """
    import pyarrow.parquet as pq  # it takes 0.1 s

    vectors = (each.deletion_vector for each in table.files.values())
    if table.stopped is not None or any(each not in (None, msgspec.UNSET) for each in vectors):
        return
    rows = [_row(each) for each in _actions(table)]
    schema = _SCHEMA
    if table.protocol is None or table.protocol.writer_features is None:
        # Readers reject a list of features, even a null, in older versions of the protocol.
        kept = [each for each in schema.field("protocol").type if "Features" not in each.name]
        schema = schema.set(0, pa.field("protocol", pa.struct(kept)))
    found = pa.Table.from_pylist(rows, schema).replace_schema_metadata(_MARK)
    buffer = BytesIO()
    pq.write_table(found, buffer, compression="snappy", write_page_checksum=True)
    store.put_if_absent(f"{table.at}/{checkpoint_path(table.version)}", buffer.getvalue())
    if (last_checkpoint(store, table.at) or 0) < table.version:  # else another worker was faster
        last = _LastCheckpoint(table.version, len(rows))
        store.put(f"{table.at}/{LAST_CHECKPOINT}", msgspec.json.encode(last))


def _actions(table: Table) -> Iterable[Action]:
    yield Action(protocol=table.protocol)
    yield Action(metadata=table.metadata)
    yield from (Action(txn=each) for each in table.txns.values())
    yield from (Action(add=each) for each in table.files.values())
    # Expiry removes their files, and then these.
    yield from (Action(remove=each) for each in table.removed.values())


def _row(action: Action) -> dict[str, Any]:
    row: dict[str, Any] = msgspec.to_builtins(action)
    if action.add is not None or action.remove is not None:
        (inner,) = row.values()
        inner["dataChange"] = False
        inner["partitionValues"] = list((inner.get("partitionValues") or {}).items())
    if action.metadata is not None:
        inner = row["metaData"]
        inner["configuration"] = list(inner["configuration"].items())
        inner["format"]["options"] = list(inner["format"]["options"].items())
    return row


def last_checkpoint(store: LakeStore, name: str) -> int | None:
    """Return the version of the last checkpoint, by any writer, or None without one.

    Raises:
        LakeUnavailable: The location did not answer.
        LakeStopped: The file is damaged.
    """
    text = store.read(f"{name}/{LAST_CHECKPOINT}")
    try:
        return None if text is None else msgspec.json.decode(text, type=_LastCheckpoint).version
    except ValueError as error:
        raise _damaged(name, error, f"Delete the file {LAST_CHECKPOINT} of the table.") from None


def read_checkpoint(store: LakeStore, name: str, version: int) -> Table | None:
    """Return a table from the checkpoint of a version, or None without one of isolog.

    Raises:
        LakeUnavailable: The location did not answer.
        LakeStopped: The checkpoint is damaged.
    """
    import pyarrow.parquet as pq  # it takes 0.1 s

    data = store.read(f"{name}/{checkpoint_path(version)}")
    if data is None:
        return None
    try:
        found = pq.read_table(pa.BufferReader(data), page_checksum_verification=True)
        if b"isolog" not in (found.schema.metadata or {}):
            return None
        table = Table(name)
        actions = [_action(row) for row in found.to_pylist(maps_as_pydicts="strict")]
        table.restore(version, actions)
    except (ValueError, OSError, pa.ArrowException) as error:
        raise _damaged(
            name,
            error,
            f"Restore {checkpoint_path(version)} of the table from a backup. If the table has"
            f" {version_path(0)}, delete {LAST_CHECKPOINT} instead: the versions have its state.",
        ) from None
    return table


def _damaged(name: str, error: Exception, hint: str) -> LakeStopped:
    fault = f"the checkpoint of the table {name} cannot be read: {error}"
    return LakeStopped(fault, hint=hint, table=name)


def _action(row: dict[str, Any]) -> Action:
    return msgspec.convert(_without_nulls(row), Action)


def _without_nulls(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _without_nulls(each) for key, each in value.items() if each is not None}
    return value
