"""What a partition needs of its log, whether that is in files, or in memory for a simulation."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Protocol

import numpy as np
import pyarrow as pa

from spark_stream.consistency.entries import Entry, Kind, Table
from spark_stream.consistency.ids import EntryIndex, LeaderEpoch, Offset
from spark_stream.consistency.partition.producers import NOBODY, Stamp
from spark_stream.consistency.record_states import JudgedTable
from spark_stream.consistency.replication.leader import Boundary
from spark_stream.errors import StorageFailure
from spark_stream.storage.disk.aside import LostTail
from spark_stream.storage.format.chunks import Chunk, Stored
from spark_stream.storage.format.log_format import UNLIMITED, LogFormat, Prepared
from spark_stream.storage.format.stored import StoredEntries
from spark_stream.storage.segment.checking import CheckedPiece, Suspect
from spark_stream.storage.segment.filtering import RecordFilter


class ReplicaLog(Protocol):
    """The log of one partition. One writer at a time; readers need no lock.

    For methods without a docstring here, see :class:`~spark_stream.storage.log.log.PartitionLog`.
    """

    directory: Path
    format: LogFormat
    cuts: tuple[LostTail, ...]

    @property
    def failed(self) -> StorageFailure | None: ...
    def when_failed(self, tell: Callable[[], None]) -> None:
        """Set the one callback for the log's failure; call it at once if the log has failed.

        It may be called under the caller's lock, and in the middle of an append.
        """

    @property
    def intact(self) -> bool:
        """Whether the open found all that the log knows it once had, and no force had failed.

        When the machine crashes, a log may lose its last entries without a trace: only somebody
        who remembers its end can tell.
        """

    @property
    def hole(self) -> EntryIndex | None:
        """The first entry whose batch is known to be damaged, or None if none is."""

    @property
    def start(self) -> Boundary: ...
    @property
    def end(self) -> Boundary: ...
    @property
    def size(self) -> int: ...

    def tables(self) -> list[Table]: ...
    def boundary_of(self, entry: EntryIndex) -> Boundary:
        """Return the position before the entry with this index, from the log's start to its end.

        Raises:
            EntriesGone: the log starts after it, or ends before it.
        """

    def append(
        self, batch: Prepared, leader_epoch: LeaderEpoch, now: int, stamp: Stamp = NOBODY
    ) -> Offset: ...
    def mark(
        self,
        kind: Kind,
        producer_id: int,
        epoch: int,
        transaction: int,
        leader_epoch: LeaderEpoch,
        now: int,
    ) -> None: ...
    def append_entries(self, rows: Table, data: pa.Buffer) -> list[Entry]:
        """Append what :meth:`read_entries` of the leader's log returned, markers included.

        Everything is checked before anything is written. Returns the entries that were appended:
        fewer than given (at least one) if the disk refused the later ones; the next call then
        raises the reason.

        Raises:
            ValueError: the rows do not start at the log's end.
            DamagedEntries: a checksum fails, or the rows are no valid table; nothing is kept.
            UnknownSchema: the first batch has a schema that :attr:`format` does not know; nothing
                is kept.
            DiskFull, StorageFailure: nothing is kept; a later call can succeed, unless the log has
                ``failed``.
        """

    def take_back(self) -> list[Entry]:
        """Append sound entries that were cut at damage and follow the log's end; return them.

        For a follower whose leader has a damaged copy of the next entry. If a later leader does not
        have some of these entries, :meth:`truncate` takes them out again.

        Raises:
            DiskFull, StorageFailure: As for :meth:`append_entries`.
        """

    def truncate(self, to: EntryIndex) -> Boundary:
        """Remove the entry with this index and all later ones; return the new end.

        While damage is known, the removed entries are kept for :meth:`take_back`, until the log
        has them again.

        Reads under way go on with what they have. A crash leaves a log that ends here or at a later
        entry which it had.

        Raises:
            EntriesGone: the log starts after the entry, or ends before it.
            DiskFull, StorageFailure: the log is as it was, or has ``failed``.
        """

    def reset(self, start: Boundary) -> None:
        """Empty the log, and let it begin at ``start``.

        While damage is known, the removed entries are kept, as by :meth:`truncate`.

        A crash leaves an older part of the log, or an empty log that begins at ``start`` or at 0.

        Raises:
            DiskFull, StorageFailure: the log is as it was, or has ``failed``.
        """

    def check_files(self) -> None:
        """Check that the files which take appends still have their names.

        Raises:
            StorageFailure: a file was removed or replaced, and the log has ``failed``; or the log
                had ``failed`` before.
        """

    def probe(self) -> None:
        """Check that the log takes appends, by a write that is undone.

        Raises:
            DiskFull, StorageFailure: The log takes none; a later call can succeed, unless the log
                has ``failed``.
        """

    def roll(self) -> None: ...
    def flush(self) -> None: ...
    def next_flush_due(self, monotonic: float) -> float | None:
        """Return when what was appended by now must be forced, or None if no time is set.

        ``monotonic`` is the present time in seconds; the result is on the same clock.
        """

    def flush_if_due(self, monotonic: float) -> None: ...
    def housekeep(self, now: int, last_stable_offset: Offset, trimmed: Offset = ...) -> int: ...
    def drop_tail(self) -> Callable[[], None] | None:
        """Copy a file without the bytes a truncation left in it; None if there is no such file.

        That may take long and needs no lock; one thread at a time. The returned function puts the
        copy in the file's place; only the writer may call it.

        Raises:
            DiskFull, StorageFailure: the file stays as it is.
        """

    def housekeeping_due(self) -> int | None: ...
    def close(self, *, forced: bool = True) -> None:
        """Close the files; the log can be opened again.

        Args:
            forced: Force what was appended first. False: the files are about to be removed.

        Raises:
            StorageFailure: The log has ``failed``; its files are closed all the same.
        """

    def read(
        self,
        start: Offset,
        end: Offset,
        columns: Sequence[str] | None = None,
        max_records: int = UNLIMITED,
        max_bytes: int = UNLIMITED,
        *,
        committed: bool = False,
        rows: RecordFilter | None = None,
        locating: bool = False,
        encoded: bool = False,
        schema: pa.Schema | None = None,
    ) -> Iterator[Chunk]: ...
    def read_entries(
        self, first: EntryIndex, max_bytes: int, upto: EntryIndex | None = None
    ) -> StoredEntries | None:
        """Return the stored entries from ``first`` to before ``upto``, by default the log's end.

        At least one entry, and more only up to ``max_bytes`` of rows and data; all from one
        segment. None if there is no entry yet. Any thread may call this; what it returns never
        changes, whatever becomes of the log.

        Raises:
            EntriesGone: the log starts after ``first``, or ends before it.
            DamagedSegment: the batch of ``first`` is damaged.
        """

    def locate(self, indexes: np.ndarray, epoch: int, *, doubted: bool = False) -> Stored | None:
        """Return where the messages of these entries lie, if all are in one file; else None.

        ``indexes``: runs of entries, (first, count), int64, shape (runs, 2), rising. None also if
        the last of them is not of this leader epoch: it is another entry then. Only the writer may
        call this, so that no file is replaced meanwhile. Whoever reads the messages checks them; if
        they are ``doubted``, this checks them as well.

        Raises:
            EntriesGone: the log starts after the first, or ends before it.
            DamagedSegment: an entry is damaged, or its batch is, if ``doubted``.
            StorageFailure: the file is gone.
            InvalidRequest: the runs are malformed, or name an entry that is not a batch.
        """

    def check_stored(self) -> Iterator[CheckedPiece]:
        """Read and check entries and batches from the disk; one thread at a time, without a lock.

        An entry that fails its checksum is a suspect, for :meth:`confirm`.
        """

    def confirm(self, suspect: Suspect) -> bool:
        """Return whether the suspect is in the log and damaged; if so, note it (``hole``).

        Only the writer may call this, so that no file is replaced meanwhile.
        """

    def judged_tables(self) -> list[JudgedTable]:
        """Return the entries tables, the oldest first, each with which rows are aborted."""

    def has_aborted(self, start: Offset, end: Offset) -> bool:
        """Return whether a record of ``[start, end)`` is known as aborted, without reading any."""

    def offset_at(self, timestamp: int, start: Offset = ...) -> Offset | None:
        """Return the first offset from ``start`` whose record's timestamp is at or after this one.

        None if there is none. Microseconds since the epoch. Timestamps need not rise with offsets:
        this returns the least such offset, as Kafka's offsetsForTimes does.
        """
