"""The worker of a lake: rounds in a loop. Several workers of one lake do no harm.

A round that fails with a retriable error is repeated after a pause. A worker that is killed leaves
files that no version has, and the next one continues from the tables.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import Final

from msgspec import Struct

from spark_stream.client.log import Log
from spark_stream.consistency.lakes import LakeDescription
from spark_stream.errors import (
    InvalidOption,
    IsologError,
    LakeStopped,
    LakeUnavailable,
    OffsetEvicted,
    UnknownLake,
    UnknownTopic,
    UnsupportedType,
)
from spark_stream.lake.expiry import expire_table, retention_properties
from spark_stream.lake.merging import merge_table, range_of_cuts
from spark_stream.lake.retention import trim_cuts, trim_table
from spark_stream.lake.rounds import Lake, run_round
from spark_stream.lake.storage.stores import LakeStore, open_store
from spark_stream.lake.versions import confirm
from spark_stream.lake_worker.counts import WorkerCounts
from spark_stream.lake_worker.driver import ROUND_BYTES, Driver
from spark_stream.lake_worker.iceberg import IcebergTables
from spark_stream.loggers import logger_of
from spark_stream.structs import INT64_MAX

logger = logger_of(__name__)

_RETRY_S: Final = 1.0
_OUTDATED_MAX: Final = 20
_REPORT_S: Final = 60.0
_UNMERGED_ROUNDS_MAX: Final = 10
CUTS_FILE_BYTES: Final = 256 << 10
"""The size of a large file of the table of cuts."""

Wait = Callable[[float], bool]
"""A function that waits for some seconds. It returns whether the worker has to end."""


class RoundResult(Struct, frozen=True):
    """The tables after a round. ``behind``: the log has more committed records.

    ``problem``: the reason why the Iceberg tables stay behind. It does not affect the Delta tables.
    """

    versions: dict[str, int]
    files: int
    behind: bool
    problem: IsologError | None = None


class LakeWorker:
    """The worker of one lake, for one thread.

    Args:
        log: The connection. Its user needs ``read`` on the topics, and ``write`` on the lake.
        name: The name of the lake.
        round_bytes: The stored bytes of a partition that one round copies.

    Raises:
        UnknownLake: There is no such lake.
        LakeStopped: The user may not read all topics of the lake.
        Unsupported: The location is of an unknown kind.

    Examples:
        >>> topic = log.create_topic("fares", schema="id bigint")
        >>> with log.producer() as producer:
        ...     written = producer.append("fares", pa.table({"id": [1, 2]}))
        >>> lake = log.create_lake("taxis", "fares", "lake-of-fares")
        >>> isolog.LakeWorker(log, "taxis").run_once()
        >>> log.describe_lake("taxis").topics[0].tiered
        {0: 2}
    """

    def __init__(self, log: Log, name: str, round_bytes: int = ROUND_BYTES) -> None:
        self._log = log
        self._connection = log._connection
        self.counts = WorkerCounts(name)
        self._lake = log.describe_lake(name)
        if self._lake.omitted:
            raise _omitted(name)
        self._store: LakeStore = open_store(self._lake.location)
        self._round_bytes = round_bytes
        self._iceberg: IcebergTables | None = None
        self._deleted: set[str] = set()
        self._unmerged_rounds = 0
        self._first_merged = 0
        """The place of the topic whose table the next merge begins with."""
        self._reset()

    def _reset(self) -> None:
        """Drop all state in memory. The next round reads the tables again."""
        self._driver = Driver(
            self._connection,
            self._log._topics,
            self._lake,
            self._store,
            self.counts,
            self._round_bytes,
        )
        self.counts.freshness_s = self._lake.freshness_ms / 1_000
        names = [each.name for each in self._lake.topics]
        self._tables = Lake(self._lake.id, self._connection.cluster_id or "", names)
        of = self._lake
        durations = retention_properties(of.version_retention_ms, of.file_retention_ms)
        self._tables.properties.update(durations)
        self._recorded: dict[str, dict[int, int]] = {}
        self._recorded_s = 0.0
        self._expiry_due_ms: dict[str, int] = {}

    def run(self, wait: Wait | None = None) -> None:
        """Run rounds until the lake is dropped, or ``wait`` returns true.

        Raises:
            LakeStopped: A person has to decide about a table or a topic.
            IsologError: Any other error that a retry does not mend.
        """
        wait = wait or _wait
        while True:
            started = time.monotonic()
            pause = self._lake.freshness_ms / 1_000
            try:
                result = self._counted_round()
                if result.behind:
                    pause = 0.0
                if isinstance(result.problem, InvalidOption):
                    with suppress(IsologError):  # the first error is the one to raise
                        self._record_stop(result.problem)
                    raise result.problem
                if result.problem is not None:
                    logger.warning(
                        "the Iceberg tables of the lake %s stay behind: %s",
                        self._lake.name,
                        result.problem,
                    )
            except UnknownLake:
                logger.info("the lake %s was dropped; its worker ends", self._lake.name)
                return
            except IsologError as error:
                if not error.retriable:
                    raise
                logger.warning("a round of the lake %s failed: %s", self._lake.name, error)
                self._reset()
                pause = _RETRY_S
            if wait(max(0.0, pause - (time.monotonic() - started))):
                return

    def run_once(self) -> None:
        """Copy all records that are committed at this time.

        Later ones are copied in the first round alone, so that the end of a busy topic is not
        followed.

        Raises: as :meth:`run`, and errors that a retry may mend.
        """
        result = self._counted_round()
        self._driver.limit = self._driver.ends
        try:
            while result.behind:
                result = self._counted_round()
        finally:
            self._driver.limit = None
        if result.problem is not None:
            raise result.problem

    def _counted_round(self) -> RoundResult:
        """Run a round, and count its error. Record a stop, so that brokers and consoles show it."""
        try:
            found = self.round()
        except IsologError as error:
            self.counts.refused.add(error.code)
            self.counts.problem = error.message
            if not error.retriable and not isinstance(error, UnknownLake):
                with suppress(IsologError):  # the first error is the one to raise
                    self._record_stop(error)
            raise
        self.counts.rounds += 1
        self.counts.problem = None
        if found.problem is not None:
            self.counts.refused.add(found.problem.code)
            self.counts.problem = found.problem.message
        return found

    def _record_stop(self, reason: IsologError) -> None:
        lakes, lake = self._log._lakes, self._lake
        lakes.record_progress(
            lake.name, lake.id, {}, reason.message, reason.hint, location=lake.location
        )

    def round(self) -> RoundResult:
        """Run one round, record the tables' offsets, remove old versions, and merge small files.

        A worker that is behind merges in every tenth round only.

        Raises: as :meth:`run_once`.
        """
        for _ in range(_OUTDATED_MAX):
            self._check()
            try:
                if self._driver.run(run_round(self._tables)):
                    break
            # A topic was deleted during the round, or its records were removed after another worker
            # had copied them.
            except (UnknownTopic, OffsetEvicted) as error:
                logger.info("a round of the lake %s is repeated: %s", self._lake.name, error)
        else:
            raise LakeUnavailable(
                f"the tables or topics of the lake {self._lake.name!r} changed in each of"
                f" {_OUTDATED_MAX} attempts",
                hint="The worker tries again.",
                lake=self._lake.name,
            )
        self._note_deleted()
        self._record()
        self._trim()
        self._unmerged_rounds += 1
        if not self._driver.is_behind or self._unmerged_rounds >= _UNMERGED_ROUNDS_MAX:
            self._merge()
            self._unmerged_rounds = 0
        problem = self._mirror()  # its old snapshots expire before their files
        self._expire()
        tables = self._tables.tables
        self.counts.note_tables(tables.values())
        return RoundResult(
            {name: table.version for name, table in tables.items()},
            sum(len(table.files) for table in tables.values()),
            self._driver.is_behind,
            problem,
        )

    def _check(self) -> None:
        """Read the recorded offsets, which a round then finds in the tables.

        Raise UnknownLake if the lake was dropped, also if there is another one of the name.
        """
        found = self._log.describe_lake(self._lake.name)
        if found.id != self._lake.id:
            raise UnknownLake(f"the lake {found.name!r} was dropped", lake=found.name)
        if found.omitted:
            raise _omitted(found.name)
        if found.overlaps:
            raise LakeStopped(
                f"the location of the lake {found.name!r} overlaps that of another lake:"
                f" {found.location}",
                hint="Two creations were interrupted. Drop one of both lakes: isolog lake drop.",
                lake=found.name,
            )
        if _definition(found) != _definition(self._lake):
            logger.info("the lake %s was altered", found.name)
            self._lake = found
            self._store = open_store(found.location)
            self._iceberg = None
            limit = self._driver.limit
            self._reset()
            self._driver.limit = limit
        self._tables.recorded = {each.id: each.tiered for each in found.topics}

    def _note_deleted(self) -> None:
        """Log a topic that was deleted, once. Its table stays, and the others continue."""
        for topic in self._lake.topics:
            if topic.name not in self._driver.topics and topic.name not in self._deleted:
                self._deleted.add(topic.name)
                logger.warning(
                    "the topic %s of the lake %s was deleted; its table stays as it is",
                    topic.name,
                    self._lake.name,
                )

    def _trim(self) -> None:
        cluster, tables = self._tables.cluster, self._tables.tables
        for name, topic in self._driver.topics.items():
            if removed := self._driver.run(trim_table(tables[name], cluster, topic)):
                logger.info("retention removed %d files of the table %s", removed, name)
        self._driver.run(trim_cuts(self._tables.cuts, cluster, self._lake.id))

    def _merge(self) -> None:
        """Merge a group of files of each table, until they have ``file_bytes`` together.

        The next call begins with the following table.
        """
        cluster, file_bytes = self._tables.cluster, self._lake.file_bytes
        enough = self._driver.merged_bytes + file_bytes
        names = deque(self._driver.topics)
        names.rotate(-self._first_merged)
        while names and self._driver.merged_bytes < enough:
            name = names.popleft()
            self._first_merged = (self._first_merged + 1) % len(self._driver.topics)
            table, topic = self._tables.tables[name], self._driver.topics[name]
            try:
                merged = self._driver.run(merge_table(table, cluster, topic.id, file_bytes))
            except UnsupportedType as error:  # of a column that another program added
                logger.info("the files of the table %s are not merged: %s", name, error)
                continue
            self.counts.merged_files += merged
            if merged:
                logger.info("merged %d files of the table %s", merged, name)
        cuts, of = self._tables.cuts, self._lake.id
        self._driver.run(merge_table(cuts, cluster, of, CUTS_FILE_BYTES, ranging=range_of_cuts))

    def _expire(self) -> None:
        for name, table in self._tables.tables.items():
            if removed := self._driver.run(expire_table(table, self._expiry_due_ms)):
                logger.info("removed %d expired files of the table %s", removed, name)

    def _record(self) -> None:
        """Record the offsets that the versions in the location have: the tables were read there.

        Also without progress from time to time, so that an absent worker shows.
        """
        for table in self._tables.tables.values():
            self._driver.run(confirm(table))
        found: dict[str, dict[int, int]] = {}
        for name, topic in self._driver.topics.items():
            table = self._tables.tables[name]
            table.check(self._tables.cluster, topic.id)
            found[topic.id] = table.offsets(topic.id)
        have = {
            (topic.name, partition): at if topic.name in self._driver.topics else INT64_MAX
            for topic in self._lake.topics
            for partition, at in self._tables.tables[topic.name].offsets(topic.id).items()
        }
        self.counts.freshness.note(self._driver.looked_s, self._driver.ends, have)
        now_s = time.monotonic()
        if found != self._recorded or now_s - self._recorded_s >= _REPORT_S:
            of = self._lake
            self._log._lakes.record_progress(of.name, of.id, found, location=of.location)
            self._recorded, self._recorded_s = found, now_s
            self._driver.note_clock(self._log.describe_lake(self._lake.name).recorded_ms)

    def _mirror(self) -> IsologError | None:
        """Give the Iceberg tables the files of the Delta tables. Return the first error."""
        if self._lake.iceberg is None:
            return None
        first = None
        try:
            self._iceberg = self._iceberg or IcebergTables(self._lake)
        except IsologError as error:
            return error
        for name in self._driver.topics:
            try:
                self._iceberg.sync(self._tables.tables[name], self._driver.now_ms())
            except IsologError as error:
                first = first or error
        return first


def _definition(lake: LakeDescription) -> object:
    """Return the fields of a lake that `isolog lake alter` sets."""
    topics = [(each.name, each.id) for each in lake.topics]
    return topics, lake.freshness_ms, lake.file_bytes, lake.location


def _omitted(name: str) -> LakeStopped:
    return LakeStopped(
        f"the worker's user may not read all topics of the lake {name!r}",
        hint="Allow it: isolog acl allow USER read topic:NAME.",
        lake=name,
    )


def _wait(seconds: float) -> bool:
    time.sleep(seconds)
    return False
