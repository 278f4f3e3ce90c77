"""Counts of a worker, its lag, and their series for Prometheus.

The thread of the worker writes them. Scrapes read them in other threads.
"""

from __future__ import annotations

import socket
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from typing import Final, Self

from spark_stream.counting import Distribution, Histogram, NamedCounts
from spark_stream.exposition import PageServer, health_page
from spark_stream.figures import ByLabels, Figures, Subject, counter, figures_page, gauge, histogram
from spark_stream.lake.delta.table import Table

_SEEN_MAX: Final = 512
Ends = Mapping[tuple[str, int], int]
"""By topic and partition, the end of the committed records."""


class Freshness:
    """The lag of tables in seconds and in records.

    The tables are as old as the latest look at the log whose records they have all. With very many
    pending looks some are dropped, so that the lag is at most overestimated.
    """

    def __init__(self, now_s: float) -> None:
        self._complete_s = now_s
        self._seen: deque[tuple[float, Ends]] = deque()
        self.records = 0

    def note(self, at_s: float, ends: Ends, have: Ends) -> None:
        """Record the ends of the log at this time, and the offsets of the tables."""
        self._seen.append((at_s, ends))
        while self._seen and all(have.get(key, 0) >= at for key, at in self._seen[0][1].items()):
            self._complete_s = self._seen.popleft()[0]
        if len(self._seen) > _SEEN_MAX:
            self._seen = deque([*self._seen][::2])
        self.records = sum(max(0, at - have.get(key, 0)) for key, at in ends.items())

    def seconds(self, now_s: float) -> float:
        """Return the age of the tables."""
        return max(0.0, now_s - self._complete_s)


class WorkerCounts:
    """The counts of a worker since its start. ``problem``: the error of the last round, or None."""

    def __init__(self, lake: str) -> None:
        self.lake = lake
        self.freshness = Freshness(time.monotonic())
        self.freshness_s = 0.0
        self.problem: str | None = "no round has ended"
        self.rounds = 0
        self.conflicts = 0
        self.merged_files = 0
        self.written_files = 0
        self.written_bytes = 0
        self.written_records = 0
        self.table_files = 0
        self.table_bytes = 0
        self.commits = Histogram()
        self.refused = NamedCounts()

    def note_tables(self, tables: Iterable[Table]) -> None:
        """Record the sizes of the tables after a round."""
        files = [each for table in tables for each in table.files.values()]
        self.table_files = len(files)
        self.table_bytes = sum(each.size for each in files)


class WorkerFigures(Figures[WorkerCounts], subject=Subject.LAKE_WORKER):
    """The series of a lake's worker."""

    lake_worker_lag_records: ByLabels = gauge(
        "Offsets up to the last stable one, also of aborted records, that the tables lack at the"
        " last round",
        "lake",
    )
    lake_worker_lag_seconds: ByLabels = gauge(
        "The age of the tables: the time since the latest look at the log whose committed records"
        " the tables have all. While the worker is idle it is at most `freshness`",
        "lake",
    )
    lake_worker_freshness_seconds: ByLabels = gauge("`freshness` of the lake", "lake")
    lake_worker_rounds: ByLabels = counter("Rounds that ended", "lake")
    lake_worker_commit_seconds: Mapping[tuple[str, ...], Distribution] = histogram(
        "Puts of a version of a table, also those without an effect", "lake"
    )
    lake_worker_conflicts: ByLabels = counter(
        "Versions that another writer had put first, such as a second worker or an OPTIMIZE",
        "lake",
    )
    lake_worker_refused: ByLabels = counter(
        "Rounds that failed, by the code of the error. The worker repeats them, or stops",
        *("lake", "code"),
    )
    lake_worker_written_files: ByLabels = counter("Files that rounds have written", "lake")
    lake_worker_written_records: ByLabels = counter("Records in these files", "lake")
    lake_worker_written_bytes: ByLabels = counter("Bytes of these files", "lake")
    lake_worker_merged_files: ByLabels = counter("Small files that merges have replaced", "lake")
    lake_worker_table_files: ByLabels = gauge("Files of the last versions of the tables", "lake")
    lake_worker_table_bytes: ByLabels = gauge("Bytes of these files", "lake")

    @classmethod
    def read(cls, scrape: WorkerCounts) -> Self:
        lake = (scrape.lake,)
        return cls(
            lake_worker_lag_records={lake: scrape.freshness.records},
            lake_worker_lag_seconds={lake: scrape.freshness.seconds(time.monotonic())},
            lake_worker_freshness_seconds={lake: scrape.freshness_s},
            lake_worker_rounds={lake: scrape.rounds},
            lake_worker_commit_seconds={lake: scrape.commits.read()},
            lake_worker_conflicts={lake: scrape.conflicts},
            lake_worker_refused={
                (scrape.lake, code): count for code, count in scrape.refused.read().items()
            },
            lake_worker_written_files={lake: scrape.written_files},
            lake_worker_written_records={lake: scrape.written_records},
            lake_worker_written_bytes={lake: scrape.written_bytes},
            lake_worker_merged_files={lake: scrape.merged_files},
            lake_worker_table_files={lake: scrape.table_files},
            lake_worker_table_bytes={lake: scrape.table_bytes},
        )


def serve_counts(bound: socket.socket, counts: WorkerCounts) -> Callable[[], None]:
    """Serve the series and the health of a worker. Return a function that ends the server.

    ``bound``: a bound socket, which the server owns from this call on.

    Raises:
        InvalidOption: prometheus-client is not installed.
    """
    pages = {
        "/metrics": figures_page(lambda: counts, [WorkerFigures]),
        "/health/live": health_page(lambda: None),
        "/health/ready": health_page(lambda: counts.problem),
    }
    return PageServer(bound, pages).stop
