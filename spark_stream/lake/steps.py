"""The steps of a round: each kind is a struct, which a script yields: ``yield from Read(...)``.

A driver carries a step out and sends its answer into the script, or throws an ``IsologError``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import pyarrow as pa

from spark_stream.lake.delta.actions import Action, AddFile
from spark_stream.lake.delta.table import Table
from spark_stream.steps import Script as Script
from spark_stream.steps import Step
from spark_stream.structs import Positional


class ReadVersion(Step[list[Action] | None]):
    """The actions of a version of a table, or None if it does not exist."""

    table: str
    version: int


class PutVersion(Step[bool]):
    """A version of a table, written if it does not exist. Answered with whether it was written.

    ``LakeUnavailable`` means that the outcome is unknown: the file may exist, or may exist later.
    """

    table: str
    version: int
    actions: list[Action]


class SyncTable(Step[list[str]]):
    """The fsync of a table's folders. Answered with the paths that are missing or truncated.

    ``sizes``: the sizes in the table's log, by paths relative to the table, percent-encoded. So the
    versions that were read, perhaps those of another worker, exist also after a loss of power.
    """

    table: str
    sizes: Mapping[str, int]


class ReadCheckpoint(Step[Table | None]):
    """The state of a table from a checkpoint of isolog, or None if it does not exist.

    ``version``: that of the checkpoint, or None for the last one.
    """

    table: str
    version: int | None = None


class ReadFloor(Step[int]):
    """The version below which versions of a table may have been removed, or 0."""

    table: str


class PutFloor(Step[None]):
    """A new floor of a table, durable before the first removal. A smaller one changes nothing."""

    table: str
    floor: int


VERSION: Final = "json"
CHECKPOINT: Final = "checkpoint.parquet"


class LogFile(Positional):
    """A file of a table's log, ``<version>.<kind>``, such as ``VERSION`` or ``CHECKPOINT``.

    ``modified_ms``: milliseconds since 1970, by the store's clock.
    """

    path: str
    version: int
    kind: str
    modified_ms: int


class StoredFile(Positional):
    """A file of a location. ``modified_ms``: milliseconds since 1970, by the store's clock."""

    path: str
    size: int
    modified_ms: int


class ListFiles(Step[list[StoredFile]]):
    """The files in the folder of a table, in any order. Paths begin with the name of the table."""

    table: str


class ListLog(Step[list[LogFile]]):
    """The files in the log of a table, in any order."""

    table: str


class DeleteFiles(Step[None]):
    """The removal of files of a table. ``paths``: relative to the table, percent-encoded."""

    table: str
    paths: list[str]


class TopicState(Positional):
    """A topic of a lake at this time: its id, its columns and the log start of each partition.

    ``retention_ms`` and ``retention_bytes`` are those of the table, -1 without a limit.
    ``schema_version``: the number of alterations of the schema.
    """

    name: str
    id: str
    schema: pa.Schema
    log_starts: Mapping[int, int]
    retention_ms: int = -1
    retention_bytes: int = -1
    schema_version: int = 0


class DescribeTopics(Step[dict[str, TopicState]]):
    """The present states of the lake's topics, by name. A topic that was deleted has none.

    A topic that was created again under the name is another one, by its id.
    """


class FindCut(Step[dict[str, dict[int, int]]]):
    """An atomic cut through all partitions of the topics, at or above ``lower``.

    Both by topic and partition. A topic has no offsets if a leader has a later schema than that of
    ``schema_versions``. If it was deleted, it has none, or the driver raises ``UnknownTopic``. A
    driver may limit the cut, so that a round has a bounded size.
    """

    lower: Mapping[str, Mapping[int, int]]
    schema_versions: Mapping[str, int]


class WriteFiles(Step[list[AddFile]]):
    """The committed records of these ranges of a topic, as files of its table.

    ``ranges``: by partition the first offset and the end. A range without visible records has no
    file. Files are named by range and writer, so that a file is never written twice.
    """

    topic: TopicState
    ranges: Mapping[int, tuple[int, int]]


class Now(Step[int]):
    """The time in milliseconds since 1970."""


class NewMark(Step[str]):
    """An id that no other commit has."""


class WriteCheckpoint(Step[None]):
    """The state of a table as a checkpoint file, so that readers need fewer versions."""

    table: Table


class CutEntry(Positional):
    """The version of a topic's table at a cut, and the offsets there."""

    topic: str
    topic_id: str
    version: int
    offsets: Mapping[int, int]


class Cut(Positional):
    """A recorded cut. ``time_ms``: when it was recorded, in milliseconds since 1970."""

    number: int
    time_ms: int
    entries: list[CutEntry]


class WriteCut(Step[AddFile]):
    """A cut's rows, as a file of the table of cuts."""

    cut: Cut


class FindRanges(Step[dict[str, dict[int, tuple[int, int]]]]):
    """The first and the last offset of each partition in these files, by their paths."""

    table: str
    files: list[AddFile]


class MergeFiles(Step[AddFile]):
    """The rows of adjacent files of one partition, in one new file. ``schema``: the table's."""

    table: str
    files: list[AddFile]
    schema: str
