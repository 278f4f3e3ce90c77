"""The actions of a Delta log: https://github.com/delta-io/delta/blob/master/PROTOCOL.md

A version of a table is one file of the log. It has one JSON object per line, and each object is one
action. Unknown actions and fields are ignored here: :mod:`spark_stream.lake.delta.table` refuses a
table that needs more than isolog has, because the protocol action lists the features.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import cached_property
from typing import Any, Final

import msgspec

from spark_stream.errors import LakeStopped
from spark_stream.lake.delta.statistics import Statistics

LOG: Final = "_delta_log"
LAST_CHECKPOINT: Final = f"{LOG}/_last_checkpoint"


def version_path(version: int) -> str:
    """Return the path of a version's file, relative to the table."""
    return f"{LOG}/{version:020d}.json"


def checkpoint_path(version: int) -> str:
    """Return the path of the checkpoint of a version, relative to the table."""
    return f"{LOG}/{version:020d}.checkpoint.parquet"


class Part(msgspec.Struct, frozen=True, omit_defaults=True, rename="camel"):
    """The base of the objects in a log. Field names are written in camel case."""


class Protocol(Part, frozen=True):
    """The least versions of readers and writers, and from 3 and 7 on the features they need."""

    min_reader_version: int
    min_writer_version: int
    reader_features: list[str] | None = None
    writer_features: list[str] | None = None


class Format(Part, frozen=True, omit_defaults=False):
    """The format of the files: always Parquet."""

    provider: str = "parquet"
    options: dict[str, str] = {}


class Metadata(Part, frozen=True, omit_defaults=False):
    """The table's id, schema and configuration. ``schema_string``: JSON, by ``delta.schema``."""

    id: str
    schema_string: str
    format: Format = Format()
    name: str | None = None
    description: str | None = None
    partition_columns: list[str] = []
    configuration: dict[str, str] = {}
    created_time: int | None = None


class AddFile(Part, frozen=True, omit_defaults=False, dict=True):
    """A file that belongs to the table from this version on.

    ``path``: relative to the table, percent-encoded. ``stats``: JSON with the number of rows and
    the least and greatest values. ``modification_time``: milliseconds.
    """

    path: str
    size: int
    modification_time: int
    data_change: bool = True
    partition_values: dict[str, str | None] = {}
    stats: str | None = None
    deletion_vector: msgspec.Raw | msgspec.UnsetType | None = msgspec.UNSET

    @cached_property
    def statistics(self) -> Statistics:
        """The statistics, decoded once: each read of a table uses those of all its files."""
        return Statistics.of(self.stats)

    def removed(self, now_ms: int, *, data_change: bool = True) -> RemoveFile:
        """Return the removal of the file at this time."""
        return RemoveFile(
            path=self.path,
            deletion_timestamp=now_ms,
            data_change=data_change,
            extended_file_metadata=True,
            partition_values=self.partition_values,
            size=self.size,
        )


class RemoveFile(Part, frozen=True, omit_defaults=False):
    """A file that belongs to no version from this one on."""

    path: str
    deletion_timestamp: int | None = None
    data_change: bool = True
    extended_file_metadata: bool | None = None
    partition_values: dict[str, str | None] | None = None
    size: int | None = None


class Txn(Part, frozen=True):
    """A number of an application. isolog's are the next offset of a partition."""

    app_id: str
    version: int
    last_updated: int | None = None


class CommitInfo(Part, frozen=True):
    """The writer of a version, and its operation. ``isolog``: the id of isolog's own commit."""

    timestamp: int | None = None
    operation: str | None = None
    operation_parameters: dict[str, Any] = {}
    is_blind_append: bool | None = None
    engine_info: str | None = None
    isolog: str | None = None


class Action(msgspec.Struct, frozen=True, omit_defaults=True):
    """One line of a version: exactly one of its fields is set, or none for an unknown action."""

    commit_info: CommitInfo | None = msgspec.field(default=None, name="commitInfo")
    protocol: Protocol | None = None
    metadata: Metadata | None = msgspec.field(default=None, name="metaData")
    txn: Txn | None = None
    add: AddFile | None = None
    remove: RemoveFile | None = None


_decoder: Final = msgspec.json.Decoder(Action)
_encoder: Final = msgspec.json.Encoder()


def encoded(actions: Iterable[Action]) -> bytes:
    """Return the bytes of a version's file."""
    return _encoder.encode_lines(list(actions))


def decoded(table: str, version: int, data: bytes) -> list[Action]:
    """Return the actions of a version's file.

    Raises:
        LakeStopped: The file is empty, or a line is no action of a Delta log.
    """
    try:
        found = _decoder.decode_lines(data)
    except msgspec.MsgspecError as error:
        raise _damaged(table, version, str(error)) from None
    if not found:  # a crash of a file server leaves such a file
        raise _damaged(table, version, "the file is empty")
    return found


def _damaged(table: str, version: int, fault: str) -> LakeStopped:
    return LakeStopped(
        f"version {version} of the table {table} cannot be read: {fault}",
        hint="The file is damaged or no file of a Delta log. Restore it from a backup. If it is the"
        f" last version, stop the worker and delete {version_path(version)}: the worker copies the"
        " records again, or stops if others rely on them.",
        table=table,
        version=version,
    )


def commit_info(
    operation: str, now_ms: int, mark: str, parameters: Mapping[str, Any] | None = None
) -> Action:
    """Return the action that names isolog as the writer. ``mark``: an id of this commit."""
    info = CommitInfo(
        timestamp=now_ms,
        operation=operation,
        operation_parameters=dict(parameters or {}),
        is_blind_append=operation == "WRITE",
        engine_info="isolog",
        isolog=mark,
    )
    return Action(commit_info=info)
