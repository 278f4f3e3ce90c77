"""Lakes: their definitions, and the offsets that local retention may rely on.

A lake copies topics into tables. Its worker records, by partition, the offset that it has read back
from the table. Recorded offsets never move back. A topic with several lakes may remove local
records only below the smallest of these offsets (:func:`tiered`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Annotated, Final

from msgspec import Meta, field
from msgspec.structs import replace

from spark_stream.structs import Name, OffsetField, PartitionField, Positional, learn_types

FRESHNESS_MS_MIN: Final = 1_000
FRESHNESS_MS_DEFAULT: Final = 60_000
FILE_BYTES_DEFAULT: Final = 128 << 20
RETENTION_MS_MIN: Final = 60_000
STOPPED_MAX: Final = 1_000
ICEBERG_NAME: Final = r"\A[A-Za-z0-9_-]{1,64}(\.[A-Za-z0-9_-]{1,64})?\Z"
"""The name of a catalog in pyiceberg's configuration, and perhaps a namespace."""

FreshnessField = Annotated[int, Meta(ge=FRESHNESS_MS_MIN, le=86_400_000)]
FileBytesField = Annotated[int, Meta(ge=1 << 10, le=1 << 34)]
RetentionField = Annotated[int, Meta(ge=RETENTION_MS_MIN, le=100 * 365 * 86_400_000)]
StoppedField = Annotated[str, Meta(max_length=STOPPED_MAX)]
IcebergName = Annotated[str, Meta(pattern=ICEBERG_NAME)]
LakeId = Annotated[str, Meta(pattern=r"\A[a-z0-9-]{1,64}\Z")]
Tiered = dict[Name, dict[PartitionField, OffsetField]]
"""By topic id and partition, the offset below which the table has all committed records."""


class LakeTopic(Positional, forbid_unknown_fields=False, omit_defaults=False):
    """A topic of a lake.

    Attributes:
        name: The name of the topic, which is also that of its table.
        id: The id of the topic.
        tiered: By partition, the offset that the worker has read back from the table.
    """

    name: Name
    id: Name
    tiered: dict[PartitionField, OffsetField] = field(default_factory=dict)


class LakeDescription(Positional, forbid_unknown_fields=False, omit_defaults=False):
    """A lake: topics, and the location of their tables.

    Attributes:
        name: The name.
        id: The id. A lake that is created again under the name has another one.
        location: A folder, or the URL of one in an object store. It never has keys.
        topics: The topics, sorted.
        freshness_ms: The time between two rounds of the worker.
        file_bytes: The size of a large file. Smaller adjacent files are merged.
        created_ms: The time of its creation, in ms since the epoch.
        recorded_ms: The time of the worker's last report of its progress, or None.
        omitted: The number of topics that the caller may not describe.
        overlaps: Whether another lake has an overlapping location. Then no worker runs.
        iceberg: The Iceberg catalog and namespace with a mirror of the tables, or None.
        stopped: The reason why the worker stopped, or "". It is hidden from callers without the
            right to describe all topics.
        stopped_hint: The remedy.
        version_retention_ms: The time for which versions of new tables are kept. None for the
            default of Delta tables.
        file_retention_ms: The same for files that a merge replaced.
    """

    name: Name
    id: LakeId
    location: str
    topics: tuple[LakeTopic, ...]
    freshness_ms: FreshnessField = FRESHNESS_MS_DEFAULT
    file_bytes: FileBytesField = FILE_BYTES_DEFAULT
    created_ms: int = 0
    recorded_ms: int | None = None
    omitted: int = 0
    iceberg: IcebergName | None = None
    stopped: StoppedField = ""
    stopped_hint: StoppedField = ""
    version_retention_ms: RetentionField | None = None
    file_retention_ms: RetentionField | None = None
    overlaps: bool = False


class TopicLake(Positional, forbid_unknown_fields=False, omit_defaults=False):
    """A lake, in the description of one of its topics.

    Attributes:
        name: The name.
        id: The id.
        location: The folder with the topic's table.
        tiered: By partition, the offset that the worker has read back from the table. A table that
            ends before it is an older copy.
        recorded_ms: The time of the worker's last report, in ms since the epoch, or None.
    """

    name: Name
    id: LakeId
    location: str
    tiered: dict[PartitionField, OffsetField] = field(default_factory=dict)
    recorded_ms: int | None = None


def advanced(
    lake: LakeDescription,
    offsets: Mapping[str, Mapping[int, int]],
    now_ms: int,
    stopped: str = "",
    stopped_hint: str = "",
) -> LakeDescription:
    """Return the lake with recorded progress. Smaller offsets and other topics change nothing.

    ``stopped``: the reason why the worker stopped, with its remedy. Then the time of the last
    progress remains.
    """
    topics = tuple(
        replace(
            each,
            tiered={
                partition: max(each.tiered.get(partition, 0), found.get(partition, 0))
                for partition in sorted(each.tiered.keys() | found.keys())
            },
        )
        for each in lake.topics
        for found in (offsets.get(each.id, {}),)
    )
    recorded_ms = lake.recorded_ms if stopped else now_ms
    return replace(
        lake,
        topics=topics,
        recorded_ms=recorded_ms,
        stopped=stopped,
        stopped_hint=stopped_hint,
    )


def tiered(lakes: Iterable[LakeDescription], topic_id: str, partition: int) -> int | None:
    """Return the offset below which every lake of a topic has all committed records.

    None if the topic has no lake.
    """
    offsets = [
        topic.tiered.get(partition, 0)
        for lake in lakes
        for topic in lake.topics
        if topic.id == topic_id
    ]
    return min(offsets) if offsets else None


learn_types(LakeDescription)
