"""The calls about lakes."""

from __future__ import annotations

from typing import ClassVar

from spark_stream.access.rules import Operation, described, on_lake, to_alter_lake, to_create_lake
from spark_stream.consistency.lakes import (
    FileBytesField,
    FreshnessField,
    IcebergName,
    LakeDescription,
    LakeId,
    RetentionField,
    StoppedField,
    Tiered,
)
from spark_stream.structs import Name
from spark_stream.wire.messages import Call, Message

DESCRIBE, WRITE, DELETE = Operation.DESCRIBE, Operation.WRITE, Operation.DELETE


class CreateLake(Call[LakeDescription], name="create-lake", needs=to_create_lake, once=True):
    """Create a lake of topics. A worker writes their tables.

    ``lake_id``: unique to this request. A retry succeeds if an earlier attempt created the lake.
    ``location``: an absolute folder, or a URL without keys. ``iceberg``: the name of a catalog.
    ``version_retention_ms``, ``file_retention_ms``: properties of new tables.
    """

    lake: Name
    lake_id: LakeId
    topics: list[Name]
    location: Name
    freshness_ms: FreshnessField
    file_bytes: FileBytesField
    iceberg: IcebergName | None = None
    version_retention_ms: RetentionField | None = None
    file_retention_ms: RetentionField | None = None


class AlterLake(Call[LakeDescription], name="alter-lake", needs=to_alter_lake, once=True):
    """Alter a lake. A field that is None stays as it is. The worker follows in its next round.

    ``topics``: all topics that the lake is to have. The tables of removed topics stay.
    ``location``: that of copied tables, which have all committed records below ``copied``, by topic
    id and partition. It is refused if a worker has recorded later offsets.
    """

    lake: Name
    lake_id: LakeId
    topics: list[Name] | None = None
    freshness_ms: FreshnessField | None = None
    file_bytes: FileBytesField | None = None
    location: Name | None = None
    copied: Tiered | None = None


class LakeList(Message):
    """The lakes, by name."""

    lakes: list[LakeDescription]


class ListLakes(Call[LakeList], name="list-lakes", needs=described):
    """List the lakes that the caller may describe.

    Topics that the caller may not describe are left out.
    """


class DescribeLake(Call[LakeDescription], name="describe-lake", needs=on_lake(DESCRIBE)):
    """Describe a lake. Topics that the caller may not describe are left out."""

    lake: Name


class RecordLakeProgress(Call[None], name="record-lake-progress", needs=on_lake(WRITE)):
    """Record the offsets that a worker has read back from the tables of a lake.

    ``tiered``: by topic id and partition. Smaller offsets change nothing. ``stopped``: the reason
    why the worker stopped, and ``stopped_hint`` its remedy. The next progress of a worker removes
    them. ``location``: that of the tables. A report from an earlier location is refused.
    """

    HINTS: ClassVar[frozenset[str]] = frozenset({"stopped", "stopped_hint", "location"})

    lake: Name
    lake_id: LakeId
    tiered: Tiered
    stopped: StoppedField = ""
    stopped_hint: StoppedField = ""
    location: str = ""


class DropLake(Call[None], name="drop-lake", needs=on_lake(DELETE), once=True):
    """Remove a lake. Its tables stay where they are."""

    lake: Name
    lake_id: LakeId
