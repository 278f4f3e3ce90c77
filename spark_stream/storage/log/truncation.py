"""Truncation of a log, or its removal, without changes to a file that a reader may have mapped.

A follower truncates its log to the part that agrees with its leader. The time for that does not
depend on the amount of data before or after the cut: the segment with the cut becomes a closed one.
Its entries file is replaced by a shorter one, and its ``.arrow`` file keeps a *tail* without
entries, until housekeeping copies the file without it. The next segment begins at the cut. If no
record would be left in the segment, the next one would have the same name. Then the segment is
rewritten instead.

Order of steps of a cut:

1. Every segment that changes maps its files, for the reads under way.
2. The mark of fsyncs is lowered, and forced. So the next open does not report the cut as a loss.
3. The segments after the cut are removed, the newest first.
4. The next segment is made and forced. Recovery removes it unless the one before it is shorter.
5. The shorter entries file replaces the longer one, and that is forced.

So a crash leaves a log that ends at the cut or at a later entry that it had. If the segment is
rewritten, step 4 is left out, and after 5 a new ``.arrow`` file replaces the old one. An error
before 3, or before a file was removed, leaves the log unchanged. After a later error the log has
failed: it accepts no appends until it is opened again.

To reset a log, all segments are removed, the newest first. The first file of the new segment has
its schema message, because only this message has the index of its first entry.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

import numpy as np
from msgspec import Struct

from spark_stream.consistency.entries import ENTRY, Table
from spark_stream.consistency.replication.bounds import Boundary
from spark_stream.errors import IsologError
from spark_stream.storage.disk.disk import Disk
from spark_stream.storage.disk.fsyncs import START, Fsyncs
from spark_stream.storage.format.codec import END_OF_STREAM, Codec, moved
from spark_stream.storage.format.log_format import LogFormat
from spark_stream.storage.segment.active_segment import ActiveSegment, header_of
from spark_stream.storage.segment.segment import Segment, SegmentName


class Truncation(Struct, frozen=True):
    """The truncation of one log. It changes only files, and returns the log's new segments."""

    disk: Disk
    directory: Path
    format: LogFormat
    forcing: Fsyncs

    def cut(
        self, closed: Sequence[Segment], active: ActiveSegment, to: Boundary
    ) -> tuple[tuple[Segment, ...], ActiveSegment]:
        """Truncate the log to ``to``, and return its closed segments and its active one.

        Raises:
            DiskFull, StorageFailure: the log is unchanged, or has failed.
        """
        segments = (*closed, active)
        place = sum(segment.first.entry <= to.entry for segment in segments) - 1
        last, behind = segments[place], segments[place + 1 :]
        for segment in segments[place:]:
            segment.hold()
        self.forcing.lower(to)
        with self._failing(if_any=bool(behind)):
            for segment in reversed(behind):
                segment.remove(self.forcing.force_names)
            if to.offset == last.first.offset:
                kept, following = segments[:place], self._rewritten(last, to)
            else:
                shorter, following = self._split(last, to)
                kept = (*segments[:place], shorter)
        active.close()
        self.forcing.mark(to)
        return kept, following

    def empty(
        self, closed: Sequence[Segment], active: ActiveSegment, start: Boundary
    ) -> ActiveSegment:
        """Empty the log. Return its only segment, at ``start``. Errors: as for :meth:`cut`."""
        segments = (*closed, active)
        following = self.segment(start, active.codec)
        for segment in segments:
            segment.hold()
        self.forcing.lower(START)
        with self._failing(if_any=True):
            for segment in reversed(segments):
                segment.remove(self.forcing.force_names)
            if start != START:  # the default start of a log without files
                following.make_first()
        self.forcing.mark(start)
        return following

    def segment(
        self,
        first: Boundary,
        codec: Codec,
        table: Table | None = None,
        data_end: int | None = None,
    ) -> ActiveSegment:
        """Return a segment for appends. Without ``data_end`` it has no files yet."""
        return ActiveSegment(
            self.disk,
            SegmentName(self.directory, int(first.offset)),
            codec,
            first,
            np.zeros(0, ENTRY) if table is None else table,
            facts=dict(self.format.facts),
            forcing=self.forcing,
            data_end=data_end,
        )

    def _split(self, last: Segment, to: Boundary) -> tuple[Segment, ActiveSegment]:
        """Make the segment after the cut, and truncate the entries of the one before it."""
        last.flush()
        following = self.segment(to, last.codec)
        following.make()
        rows = to.entry - last.first.entry
        try:
            self.disk.write_whole(last.name.entries, [last.table[:rows].tobytes()])
        except IsologError:
            with suppress(IsologError):  # recovery removes its remains
                following.remove(self.forcing.force_names)
            raise
        with self._failing(if_any=True):
            self.forcing.force_names()
            table = np.frombuffer(self.disk.map(last.name.entries), ENTRY, count=rows)
        return last.shortened(table), following

    def _rewritten(self, last: Segment, to: Boundary) -> ActiveSegment:
        """Rewrite the segment with only the markers before its first record."""
        header = header_of(last.codec, dict(self.format.facts), last.first)
        rows = last.table[: to.entry - last.first.entry]
        rows = moved(rows, np.full(len(rows), len(header), np.int64))
        self.disk.write_whole(last.name.entries, [rows.tobytes()])
        with self._failing(if_any=True):
            self.forcing.force_names()
            last.close()  # before a new file takes its other file's name
            self.disk.write_whole(last.name.arrow, [header])
            self.forcing.force_names()
        return self.segment(last.first, last.codec, rows, len(header))

    def in_schema(self, active: ActiveSegment, codec: Codec) -> ActiveSegment:
        """Rewrite a segment without records for batches of another schema.

        Its ``.arrow`` file comes first. It has no batch, so after a crash, recovery only moves the
        positions of the markers to the end of the schema message.

        Raises:
            DiskFull, StorageFailure: the segment is unchanged, or the log has failed.
        """
        if not active.data_bytes:
            active.close()
            return self.segment(active.first, codec)
        header = header_of(codec, dict(self.format.facts), active.first)
        self.disk.write_whole(active.name.arrow, [header])
        rows = active.table
        active.close()
        with self._failing(if_any=True):
            self.forcing.force_names()
            if len(rows):
                rows = moved(rows, np.full(len(rows), len(header), np.int64))
                self.disk.write_whole(active.name.entries, [rows.tobytes()])
                self.forcing.force_names()
        return self.segment(active.first, codec, rows, len(header))

    @contextmanager
    def _failing(self, *, if_any: bool) -> Iterator[None]:
        """Mark the log as failed until it is opened again, if the block raises.

        ``if_any``: if False, only raise the error.
        """
        try:
            yield
        except IsologError as error:
            if not if_any:
                raise
            raise self.forcing.give_up(
                f"{self.directory}: the log could not be truncated ({error.message});"
                " the partition accepts no writes until it is opened again"
            ) from error


ENDING: Final = ".short"
"""The suffix of the copy until it replaces the file."""


class ShorterCopy:
    """A copy of a segment's ``.arrow`` file without its tail, forced to the disk."""

    def __init__(self, disk: Disk, segment: Segment) -> None:
        """Make the copy.

        Raises:
            DiskFull, StorageFailure: there is no copy. The next attempt is after the next open.
        """
        self._disk = disk
        self._segment = segment
        arrow = segment.name.arrow
        self._path = Path(f"{arrow}{ENDING}")
        segment.has_tail = False  # also if the copy fails: no second attempt before the next open
        kept = disk.map(arrow).slice(0, segment.data_end)
        disk.write_whole(self._path, [kept, END_OF_STREAM])

    def settle(self, segments: Sequence[Segment], forcing: Fsyncs) -> None:
        """Replace the file with the copy if the segment is one of these, else drop the copy.

        Raises:
            StorageFailure: this failed. The next open removes the copy.
        """
        if self._segment in segments and forcing.failed is None:
            self._disk.rename(self._path, self._segment.name.arrow)
            forcing.force_names()
            self._segment.drop_tail()
        else:
            self._disk.remove(self._path)
