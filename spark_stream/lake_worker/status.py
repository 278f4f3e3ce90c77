"""The state of a lake for people: its tables beside the log, and its cuts."""

from __future__ import annotations

from collections.abc import Iterator

from msgspec import Struct

from spark_stream.client.log import Log
from spark_stream.consistency.isolation import Isolation
from spark_stream.consistency.lakes import LakeDescription
from spark_stream.errors import IsologError, LakeStopped, UnknownTopic
from spark_stream.lake.reading import read_cuts
from spark_stream.lake.rounds import CUTS
from spark_stream.lake.steps import Cut
from spark_stream.lake.storage.cleaning import orphans
from spark_stream.lake.storage.snapshots import read_floor, read_table
from spark_stream.lake.storage.stores import StoredFile, open_store
from spark_stream.lake_worker.iceberg import IcebergTables


class TopicStatus(Struct, frozen=True):
    """A topic of a lake and its table.

    ``lag``: the committed records that the table lacks, or None if the topic was deleted.
    ``version``: that of the table, -1 without one. ``problem``: the reason why the worker stops.
    ``iceberg``: the version that the Iceberg table has, or None if the lake has no such tables.
    """

    topic: str
    version: int
    files: int
    size: int
    lag: int | None
    problem: str | None
    iceberg: int | None = None


def topics_of(log: Log, lake: LakeDescription) -> Iterator[TopicStatus]:
    """Yield the status of each topic of a lake.

    Raises:
        LakeUnavailable: The location did not answer.
    """
    store = open_store(lake.location)
    cluster = log._connection.cluster_id or ""
    mirror, no_mirror = None, None
    if lake.iceberg is not None:
        try:
            mirror = IcebergTables(lake)
        except IsologError as error:
            no_mirror = error.message
    for topic in lake.topics:
        table, problem = None, None
        try:
            table = read_table(store, topic.name)
            if table.version >= 0:
                table.check(cluster, topic.id)
        except LakeStopped as stopped:
            problem = stopped.message
        lag = None
        try:
            found = log._topics.offsets(topic.name, isolation=Isolation.READ_COMMITTED)
            if found.topic_id != topic.id:
                problem = problem or _deleted(topic.name)
            else:
                have = {} if table is None else table.offsets(topic.id)
                starts = found.log_start_offsets
                lag = sum(
                    max(0, end - have.get(number, starts[number]))
                    for number, end in found.offsets.items()
                )
        except UnknownTopic:
            problem = problem or _deleted(topic.name)
        except IsologError as error:
            problem = problem or error.message
        iceberg, problem = None, problem or no_mirror
        if mirror is not None and table is not None:
            try:
                iceberg = mirror.version(table)
            except IsologError as error:
                problem = problem or error.message
        files = [] if table is None else list(table.files.values())
        yield TopicStatus(
            topic.name,
            -1 if table is None else table.version,
            len(files),
            sum(each.size for each in files),
            lag,
            problem,
            iceberg,
        )


def _deleted(name: str) -> str:
    return (
        f"the topic {name!r} was deleted, or may not be described. Its table stays as it is. A"
        " new topic of the name needs a lake at another location"
    )


def cuts_of(lake: LakeDescription) -> list[Cut]:
    """Return the recorded cuts whose versions have not expired, the oldest first.

    Raises:
        LakeUnavailable: The location did not answer.
    """
    store = open_store(lake.location)
    floors = {each.name: read_floor(store, each.name) for each in lake.topics}
    return [
        cut
        for cut in read_cuts(store, read_table(store, CUTS))
        if all(each.version >= floors.get(each.topic, 0) for each in cut.entries)
    ]


def orphans_of(lake: LakeDescription, now_ms: int) -> list[StoredFile]:
    """Return the files older than a day that no version of a table of the lake has.

    Raises:
        LakeUnavailable: The location or the catalog did not answer.
        InvalidOption: The Iceberg catalog is not configured here.
    """
    store = open_store(lake.location)
    names = [*(each.name for each in lake.topics), CUTS]
    found = [file for name in names for file in orphans(store, name, now_ms)]
    if lake.iceberg is not None:
        mirror = IcebergTables(lake)
        for each in lake.topics:
            found += mirror.orphans(store, read_table(store, each.name), now_ms)
    return found


def remove_files(lake: LakeDescription, files: list[StoredFile]) -> None:
    """Remove files of a lake."""
    store = open_store(lake.location)
    for each in files:
        store.delete(each.path)
