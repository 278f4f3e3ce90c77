"""What a partition needs of its log, whatever keeps it: files, or memory in a simulation."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Protocol

import numpy as np
import pyarrow as pa

from spark_stream.consistency.entries import Entry, Kind, Table
from spark_stream.consistency.ids import EntryIndex, LeaderEpoch, Offset
from spark_stream.consistency.partition.producers import NOBODY, Stamp
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

    What each does that has no words here, :class:`~spark_stream.storage.log.log.PartitionLog` says.
    """

    directory: Path
    format: LogFormat
    cuts: tuple[LostTail, ...]

    @property
    def failed(self) -> StorageFailure | None: ...
    def when_failed(self, tell: Callable[[], None]) -> None:
        """Set the only callback for the log's failure; it is called at once if that has happened.

        It may be called under the caller's lock, and in the middle of an append.
        """

    @property
    def intact(self) -> bool:
        """Whether the open found all that the log knows it once had, and no force had failed.

        After a crash of the machine a log may have lost its last entries without a trace: that only
        somebody who remembers its end can tell.
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
            EntriesGone: the log starts behind it, or ends before it.
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
        fewer than given (at least one) if the disk refused the later ones, and the next call says
        why.

        Raises:
            ValueError: the rows do not start at the log's end.
            DamagedEntries: a checksum fails, or the rows are no valid table; nothing is kept.
            UnknownSchema: the first batch has a schema that is not among those of :attr:`format`;
                nothing is kept.
            DiskFull, StorageFailure: nothing is kept; a later call can succeed, unless the log has
                ``failed``.
        """

    def take_back(self) -> list[Entry]:
        """Append sound entries that were cut at damage and follow the log's end; return them.

        For a follower whose leader's copy of the next entry is damaged. What a later leader does
        not have of them, :meth:`truncate` takes out again.

        Raises:
            DiskFull, StorageFailure: As :meth:`append_entries`.
        """

    def truncate(self, to: EntryIndex) -> Boundary:
        """Remove the entry with this index and all later ones; return the new end.

        While damage is known, what is taken out is kept for :meth:`take_back`, until the log has
        it again.

        Readers under way go on with what they have. A crash leaves a log that ends here or at a
        later entry which it had.

        Raises:
            EntriesGone: the log starts behind it, or ends before it.
            DiskFull, StorageFailure: the log is as it was, or has ``failed``.
        """

    def reset(self, start: Boundary) -> None:
        """Empty the log, and let it begin at ``start``.

        While damage is known, that is kept as by :meth:`truncate`.

        A crash leaves an older part of the log, or an empty log that begins at ``start`` or at 0.

        Raises:
            DiskFull, StorageFailure: the log is as it was, or has ``failed``.
        """

    def check_files(self) -> None:
        """Check that the files which take appends still have their names.

        Raises:
            StorageFailure: One was removed or replaced, and the log has ``failed``; or it had.
        """

    def probe(self) -> None:
        """Check that the log takes appends, by a write that is taken back.

        Raises:
            DiskFull, StorageFailure: It takes none; a later call can succeed, unless the log has
                ``failed``.
        """

    def roll(self) -> None: ...
    def flush(self) -> None: ...
    def next_flush_due(self, monotonic: float) -> float | None:
        """Return when what was appended by now must be forced, or None if no time is set.

        ``monotonic`` is the present moment, in seconds, of the clock that the answer goes by.
        """

    def flush_if_due(self, monotonic: float) -> None: ...
    def housekeep(self, now: int, last_stable_offset: Offset) -> int: ...
    def drop_tail(self) -> Callable[[], None] | None:
        """Copy a file without the bytes a truncation left in it; None if there is no such file.

        That may take long and needs no lock; one thread at a time. What it returns puts the copy
        in its place, and is for the writer to call.

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

        At least one, and no more than ``max_bytes`` of rows and data if that is more than one; all
        from one segment. None if there is none yet. Any thread; what it gives stays as it is,
        whatever becomes of the log.

        Raises:
            EntriesGone: the log starts behind ``first``, or ends before it.
            DamagedSegment: the batch of ``first`` is damaged.
        """

    def locate(self, indexes: np.ndarray, epoch: int, *, doubted: bool = False) -> Stored | None:
        """Return where the messages of these entries lie, if they do so in one file; else None.

        ``indexes``: runs of entries, (first, count), int64, shape (runs, 2), rising. None also
        where the last of them is not of this leader epoch: it is another entry then. For the writer
        to call: no file is replaced meanwhile. Whoever reads the messages checks them; they are
        checked here as well if they are ``doubted``.

        Raises:
            EntriesGone: the log starts behind the first, or ends before it.
            DamagedSegment: an entry is damaged, or the batch of one that is doubted.
            StorageFailure: the file is gone.
            InvalidRequest: no such runs, or of what are no batches.
        """

    def check_stored(self) -> Iterator[CheckedPiece]:
        """Read and check entries and batches from the disk; one thread at a time, without a lock.

        What fails its checksum is a suspect, for :meth:`confirm`.
        """

    def confirm(self, suspect: Suspect) -> bool:
        """Return whether the suspect is in the log and damaged; the log knows it then (``hole``).

        For the writer to call: no file is replaced meanwhile.
        """

    def has_aborted(self, start: Offset, end: Offset) -> bool:
        """Return whether a record of ``[start, end)`` is known as aborted. Read no records."""

    def offset_at(self, timestamp: int) -> Offset | None:
        """Return the first offset whose record's timestamp is at or after this one, or None.

        Microseconds since the epoch. Timestamps need not rise with offsets: the first in the order
        of offsets is meant, as with Kafka's offsetsForTimes.
        """
