"""Progress bars for queries and batch jobs, on a terminal or in a notebook.

    from spark_stream.datasource.watching.progress import progress_bar

    with progress_bar(spark):
        query = frame.writeStream.trigger(availableNow=True)….start()
        query.awaitTermination()

A query that reads isolog shows how many records it has read, and of how many. A batch job shows
its tasks, as only Spark knows what they do. Where standard error is neither a terminal nor a
notebook, nothing is shown.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any, Final

from pyspark.sql import SparkSession
from pyspark.sql.streaming.listener import (
    QueryIdleEvent,
    QueryProgressEvent,
    QueryStartedEvent,
    QueryTerminatedEvent,
    StreamingQueryListener,
)
from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeRemainingColumn

from spark_stream.datasource.watching.lag import lags

_LOOK_S: Final = 0.25


@contextmanager
def progress_bar(spark: SparkSession, console: Console | None = None) -> Iterator[None]:
    """Show bars for what runs within the block, and remove them at its end.

    ``console``: where they are drawn, by default on standard error if it is a terminal.
    """
    screen = console or Console(stderr=True)
    if not (screen.is_terminal or screen.is_jupyter):
        yield
        return
    bars = Progress(
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        TextColumn("{task.fields[done]}", markup=False),
        TimeRemainingColumn(),
        console=screen,
        transient=True,
    )
    queries = _Queries(bars)
    spark.streams.addListener(queries)
    try:
        with bars, _jobs_shown(spark, bars):
            yield
    finally:
        with suppress(Exception):  # the session may have ended within the block
            spark.streams.removeListener(queries)


class _Queries(StreamingQueryListener):
    """A bar for each query: the records that it has read, of those that it may read."""

    def __init__(self, bars: Progress) -> None:
        self._bars = bars
        self._lock = threading.Lock()
        self._shown: dict[str, tuple[TaskID, int]] = {}

    def onQueryStarted(self, event: QueryStartedEvent) -> None:
        """Do nothing: the first micro-batch tells how much there is."""

    def onQueryProgress(self, event: QueryProgressEvent) -> None:
        progress = json.loads(event.progress.json)
        found = lags(progress)
        if not found:
            return
        run, name = str(progress["runId"]), str(progress.get("name") or progress["id"])
        behind = sum(each.readable for each in found)
        with self._lock:
            if run not in self._shown:
                self._shown[run] = self._bars.add_task(name, total=None, done=""), 0
            task, before = self._shown[run]
            read = before + int(progress.get("numInputRows", 0))
            self._shown[run] = task, read
        total = read + behind
        done = f"{read:,} of {total:,} records"
        self._bars.update(task, completed=read, total=total, done=done)

    def onQueryIdle(self, event: QueryIdleEvent) -> None:
        """Do nothing: nothing has changed."""

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:
        with self._lock:
            task, _ = self._shown.pop(str(event.runId), (None, 0))
        if task is not None:
            self._bars.remove_task(task)


@contextmanager
def _jobs_shown(spark: SparkSession, bars: Progress) -> Iterator[None]:
    """Let a thread look at Spark's jobs within the block; Spark Connect does not tell of them."""
    try:
        tracker = spark.sparkContext.statusTracker()
    except Exception:  # a session of Spark Connect has no context
        yield
        return
    ended = threading.Event()
    thread = threading.Thread(
        target=_look, args=(tracker, bars, ended), name="isolog-progress", daemon=True
    )
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


def _look(tracker: Any, bars: Progress, ended: threading.Event) -> None:
    shown: dict[int, TaskID] = {}
    while not ended.wait(_LOOK_S):
        try:
            jobs = {number: _tasks_of(tracker, number) for number in tracker.getActiveJobsIds()}
        except Exception:  # the session ends
            return
        for number in shown.keys() - jobs.keys():
            bars.remove_task(shown.pop(number))
        for number, (done, total) in sorted(jobs.items()):
            if number not in shown:
                shown[number] = bars.add_task(f"job {number}", total=None, done="")
            words = f"{done:,} of {total:,} tasks"
            bars.update(shown[number], completed=done, total=total or None, done=words)


def _tasks_of(tracker: Any, job: int) -> tuple[int, int]:
    """Return how many tasks of a job are done, and how many there are."""
    info = tracker.getJobInfo(job)
    stages = [tracker.getStageInfo(number) for number in info.stageIds] if info else []
    seen = [stage for stage in stages if stage is not None]
    return sum(each.numCompletedTasks for each in seen), sum(each.numTasks for each in seen)
