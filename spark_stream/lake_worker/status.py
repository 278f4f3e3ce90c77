"""The state of a lake for people: its tables beside the log, and its cuts."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from enum import StrEnum
from typing import Final

from msgspec import Struct

from spark_stream.client.lake_tables import OpenTable, open_table
from spark_stream.client.log import Log
from spark_stream.consistency.isolation import Isolation
from spark_stream.consistency.lakes import LakeDescription, TopicLake
from spark_stream.errors import IsologError, LakeIncomplete, LakeStopped, UnknownTopic
from spark_stream.lake.cuts import CUTS
from spark_stream.lake.delta.table import Table
from spark_stream.lake.reading import Coverage, coverage, read_cuts
from spark_stream.lake.steps import Cut, StoredFile
from spark_stream.lake.storage.snapshots import orphans, read_floor, read_table
from spark_stream.lake.storage.stores import open_store
from spark_stream.lake_worker.iceberg import IcebergTables
from spark_stream.wire.topic_messages import TopicDescription

ABSENT_MS: Final = 300_000
"""A worker is absent without a report for this time plus twice the freshness, as for the alert."""


class WorkerState(StrEnum):
    """The state of a lake's worker, by its reports."""

    REPORTING = "reporting"
    """It reported in the last 5 minutes plus twice the freshness. It may have ended since."""
    ABSENT = "absent"
    STOPPED = "stopped"
    """It ended because a person has to decide."""


class LakeState(StrEnum):
    """The state of a lake."""

    UP_TO_DATE = "up to date"
    CATCHING_UP = "catching up"
    NO_WORKER = "no worker"
    """The tables lack records, and no worker has reported for long."""
    STOPPED = "stopped"
    """A person has to decide about a table, a topic or a setting."""
    UNKNOWN = "unknown"
    """A leader or a catalog does not answer."""


class TopicStatus(Struct, frozen=True):
    """A topic of a lake and its table.

    ``lag``: the offsets up to the last stable one that the table lacks, with those of aborted
    records. None if it is unknown. ``version``: that of the table, -1 without one. ``records``:
    those in it. ``problem``: the error of the topic, or None. ``iceberg``: the version that the
    Iceberg table has, or None if the lake has no such tables.
    """

    topic: str
    version: int
    records: int
    files: int
    size: int
    lag: int | None
    problem: IsologError | None
    iceberg: int | None = None


def worker_of(lake: LakeDescription, now_ms: int) -> WorkerState:
    """Return the state of a lake's worker at a time. An idle worker reports once a minute."""
    if lake.stopped:
        return WorkerState.STOPPED
    due_ms = ABSENT_MS + 2 * lake.freshness_ms
    if lake.recorded_ms is None or now_ms - lake.recorded_ms > due_ms:
        return WorkerState.ABSENT
    return WorkerState.REPORTING


def state_of(lake: LakeDescription, topics: Iterable[TopicStatus], now_ms: int) -> LakeState:
    """Return the state of a lake at a time. Beside a deleted topic the others continue."""
    topics = list(topics)
    problems = [each.problem for each in topics if each.problem is not None]
    present = [each for each in problems if not isinstance(each, UnknownTopic)]
    problems = problems if len(problems) == len(topics) else present
    worker = worker_of(lake, now_ms)
    if worker is WorkerState.STOPPED or any(not each.retriable for each in problems):
        return LakeState.STOPPED
    if problems:
        return LakeState.UNKNOWN
    if not any(each.lag for each in topics):
        return LakeState.UP_TO_DATE
    return LakeState.NO_WORKER if worker is WorkerState.ABSENT else LakeState.CATCHING_UP


def topics_of(log: Log, lake: LakeDescription) -> Iterator[TopicStatus]:
    """Yield the status of each topic of a lake.

    Raises:
        LakeUnavailable: The location did not answer.
    """
    store = open_store(lake.location)
    cluster = log._connection.cluster_id or ""
    mirror: IcebergTables | None = None
    no_mirror: IsologError | None = None
    if lake.iceberg is not None:
        try:
            mirror = IcebergTables(lake)
        except IsologError as error:
            no_mirror = error
    for topic in lake.topics:
        table: Table | None = None
        problem: IsologError | None = None
        try:
            of = TopicLake(lake.name, lake.id, lake.location, topic.tiered)
            opened = OpenTable(of, store, read_table(store, topic.name))
            table = opened.table
            if table.version >= 0:
                table.check(cluster, topic.id)
            opened.check_copied(topic.id)
        except (LakeStopped, LakeIncomplete) as stopped:
            problem = stopped
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
            problem = problem or error
        iceberg, problem = None, problem or no_mirror
        if mirror is not None and table is not None:
            try:
                iceberg = mirror.version(table)
            except IsologError as error:
                problem = problem or error
        files = [] if table is None else list(table.files.values())
        yield TopicStatus(
            topic.name,
            -1 if table is None else table.version,
            sum(each.statistics.records for each in files),
            len(files),
            sum(each.size for each in files),
            lag,
            problem,
            iceberg,
        )


class TopicTable(Struct, frozen=True):
    """The table of a topic in a lake.

    ``offsets``: by partition, the offsets for which the table is complete. ``problem``: the error
    of the table or of its location, or None.
    """

    lake: str
    location: str
    offsets: dict[int, Coverage]
    problem: IsologError | None = None


def tables_of_topic(log: Log, topic: TopicDescription) -> list[TopicTable]:
    """Return the tables of a topic, if its log has lost records. Else no location is read."""
    if not topic.lakes or not any(each.log_start_offset for each in topic.partitions):
        return []
    found = []
    for lake in topic.lakes:
        offsets: dict[int, Coverage] = {}
        problem: IsologError | None = None
        try:
            opened = open_table(lake, topic.name)
            table = opened.table
            if table.version >= 0:
                table.check(log._connection.cluster_id or "", topic.id)
            for each in topic.partitions:
                if (have := coverage(table, topic.id, each.partition)) is not None:
                    offsets[each.partition] = have
            opened.check_copied(topic.id)
        except IsologError as error:
            problem = error
        found.append(TopicTable(lake.name, lake.location, offsets, problem))
    return found


def _deleted(name: str) -> UnknownTopic:
    return UnknownTopic(
        f"the topic {name!r} was deleted, or may not be described",
        hint="Its table stays as it is. Remove the topic from the lake: isolog lake alter. A new"
        " topic of the name needs a lake at another location.",
        topic=name,
    )


def cuts_of(lake: LakeDescription) -> Iterator[Cut]:
    """Yield the recorded cuts whose versions have not expired, the last one first.

    Raises:
        LakeUnavailable: The location did not answer.
        LakeIncomplete: The table of cuts is missing, although a worker has recorded offsets.
    """
    store = open_store(lake.location)
    cuts = read_table(store, CUTS)
    if cuts.version < 0 and any(each.tiered for each in lake.topics):
        raise LakeIncomplete(
            f"the table {CUTS} of the lake {lake.name!r} is missing at {lake.location}",
            table=CUTS,
            location=lake.location,
        )
    floors = {each.name: read_floor(store, each.name) for each in lake.topics}
    for cut in read_cuts(store, cuts):
        # Versions of later cuts are not less, so all cuts before an expired one have expired.
        if any(each.version < floors.get(each.topic, 0) for each in cut.entries):
            return
        yield cut


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
