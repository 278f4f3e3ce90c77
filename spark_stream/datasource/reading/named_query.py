"""A query under its ``consumer`` name: its first start is pinned, and its progress is stored.

The pinned start is a streaming offset, as in a checkpoint. A query that starts again under the name
begins there, and losses since then are reported as for a checkpoint (``losses``). Progress is only
for display: no query reads it, and a failure to store it never fails a query.
"""

from __future__ import annotations

import json
import os
import signal
import time
import uuid
from collections.abc import Callable
from types import FrameType
from typing import Final

import psutil
from msgspec import structs

from spark_stream.client.reading.named_reader import ReaderHeartbeats
from spark_stream.consistency.isolation import ReaderEnding
from spark_stream.consistency.transactions.transactions import ReadPosition
from spark_stream.datasource.options.values import spec_text
from spark_stream.datasource.reading.planning import Planner
from spark_stream.datasource.spark.workers import READS_STREAMS, is_worker, visible_jvm
from spark_stream.datasource.values.offsets import Offsets, TopicOffsets
from spark_stream.errors import ConsumerFenced, InvalidOption, IsologError
from spark_stream.loggers import logger_of
from spark_stream.operating_system import is_running
from spark_stream.wire.consumer_messages import PinStart, RecordProgress

logger = logger_of(__name__)

_PATIENCE_S: Final = 2.0
"""The longest wait of a micro-batch for its progress to be stored."""

_PAUSE_S: Final = 30.0
"""The time after a failure in which no progress is stored."""

_LOOK_S: Final = 0.02

_JVM_END_S: Final = 2.0
"""The longest wait for the end of a JVM that has closed its sockets."""

_TRIGGER_S: Final = 600.0
"""The longest silence of a query before its second plan, which shows its trigger interval."""


class NamedQuery:
    """One run of a query that has the name ``consumer``."""

    def __init__(self, planner: Planner, name: str, *, lasting: bool = False) -> None:
        """Prepare a run. ``lasting``: it is a streaming query, so its run has a session."""
        self._lasting = lasting
        self._planner = planner
        self._name = name
        self._instance = uuid.uuid4().hex
        self._claimed = False  # whether this run has the name
        self._has_warned = False  # about a failure
        self._quiet_until = 0.0
        self._last: Offsets | None = None
        self._heartbeats: ReaderHeartbeats | None = None
        self._planned_at: float | None = None
        self._longest_s = 0.0  # between two plans
        self._jvm = visible_jvm()
        self._is_ending = False
        self._is_terminated = False

    def note_plan(self) -> None:
        """Record that Spark plans a micro-batch.

        Spark sends nothing between two plans, so a query counts as idle only if it takes longer
        than ever before in this run.
        """
        now = time.monotonic()
        if self._planned_at is not None:
            self._longest_s = max(self._longest_s, now - self._planned_at)
        self._planned_at = now
        if self._heartbeats is not None:
            self._heartbeats.record_activity()
            self._heartbeats.patience_s = self._longest_s or _TRIGGER_S

    def end(self) -> None:
        """Record the end of the run. It is clean unless the JVM of its driver has died.

        Spark stops a source by SIGTERM. Without it the JVM is usually about to end: a killed
        process closes its sockets some moments before it is gone.
        """
        self._is_ending = True
        if self._heartbeats is not None:
            is_clean = self._jvm is None or self._outlives_the_run(self._jvm)
            self._heartbeats.end(ReaderEnding.CLEAN if is_clean else ReaderEnding.LOST)

    def _outlives_the_run(self, jvm: psutil.Process) -> bool:
        deadline = time.monotonic() + _JVM_END_S
        while is_running(jvm):
            if self._is_terminated or time.monotonic() >= deadline:
                return True
            time.sleep(_LOOK_S)
        return False

    def _on_terminated(self, number: int, frame: FrameType | None) -> None:
        """Record the end before the process ends."""
        self._is_terminated = True
        if not self._is_ending:
            self.end()
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
            os.kill(os.getpid(), signal.SIGTERM)

    def _claim(self) -> None:
        """Begin the session of this run, which has the name now. For a batch job, end it too."""
        if self._claimed:
            return
        self._claimed = True
        isolation = self._planner.options.isolation
        self._heartbeats = ReaderHeartbeats(
            self._planner.connection, "query", self._name, self._instance, isolation
        )
        self._heartbeats.patience_s = _TRIGGER_S
        if self._lasting:
            self._heartbeats.start()
            if is_worker(READS_STREAMS):
                signal.signal(signal.SIGTERM, self._on_terminated)
        else:
            self._heartbeats.end()

    def pinned_start(self, first: Callable[[], Offsets]) -> dict[str, TopicOffsets]:
        """Return the first start of the query. ``first`` is called if no start is recorded.

        Raises:
            InvalidOption: A query with other topics has the name.
        """
        options = self._planner.options
        starting = f"{options.starting.option}={spec_text(options.starting.place)}"
        asked = PinStart.of(
            consumer=self._name,
            instance=self._instance,
            selection=str(options.selection),
            isolation=options.isolation,
            starting=starting,
        )
        connection = self._planner.connection
        known = connection.call(asked)
        if known.start is None and known.selection == asked.selection:
            start = json.dumps(self._planner.logged(first()))
            known = connection.call(structs.replace(asked, start=start))
        if known.selection != asked.selection:
            raise InvalidOption(
                f"consumer {self._name!r} is the name of a query that reads"
                f" {known.selection or 'other topics'}, but this query reads {asked.selection}",
                option="consumer",
                hint="Give this query another name. If it is the same query with other topics,"
                f" delete its recorded start: isolog consumers delete {self._name}",
            )
        assert known.start is not None
        self._claim()
        if known.starting != starting:
            logger.warning(
                "consumer %r begins at its recorded start (%s) and ignores %s; to start elsewhere,"
                " delete the record: isolog consumers delete %s",
                self._name,
                known.starting,
                starting,
                self._name,
            )
        return self._planner.read_back(json.loads(known.start))

    def record(self, read: Offsets) -> None:
        """Record that everything below these offsets is read."""
        if read == self._last or time.monotonic() < self._quiet_until:
            return
        self._last = read
        options = self._planner.options
        try:
            asked = RecordProgress.of(
                consumer=self._name,
                instance=self._instance,
                selection=str(options.selection),
                isolation=options.isolation,
                positions=[
                    ReadPosition(topic=name, topic_id=topic.id, partition=number, offset=offset)
                    for name, topic in sorted(read.items())
                    for number, offset in sorted(topic.offsets.items())
                ],
                claim=not self._claimed,
            )
            self._planner.connection.call(asked, _PATIENCE_S)
            self._claim()
        except ConsumerFenced:
            self._quiet_until = float("inf")
            logger.warning(
                "another query has started under the name %r, and isolog consumers now shows that"
                " query; this query continues",
                self._name,
            )
        except IsologError as error:
            self._quiet_until = time.monotonic() + _PAUSE_S
            if not self._has_warned:
                self._has_warned = True
                logger.warning(
                    "the progress of consumer %r could not be stored; the query continues: %s",
                    self._name,
                    error.message,
                )
