"""Fsyncs of a log: the part that is certainly on the disk, and the failure of the log.

To *force* bytes is to fsync them. After a failed fsync there is no other: the system may have
dropped the bytes that it could not write, and a second fsync would succeed without them. The log
has then failed: it accepts no appends until it is opened again. Reads of published records
continue.

The file ``flushed`` has the position up to which a log was forced: 24 bytes, written in place, and
forced only when the log closes. So its position may be too low, but never too high. At the next
open it shows that a missing entry was once on the disk. It also has the state of the fsyncs: done,
under way, or failed. Unless they are done, the system may show bytes that are not on the disk, so
the next open writes everything after the position again. Order of writes: the state "under way",
the fsync, then the new position. If the first write fails, there is no fsync: a full disk might
refuse the second write too, and the process may end before it.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Collection
from contextlib import suppress
from enum import IntEnum
from pathlib import Path
from typing import Final

from spark_stream.batches import crc32c
from spark_stream.consistency.ids import EntryIndex, Offset
from spark_stream.consistency.replication.bounds import Boundary
from spark_stream.errors import IsologError, StorageFailure, TooManyOpenFiles
from spark_stream.storage.disk.directory import make_log_directory
from spark_stream.storage.disk.disk import Disk, DiskFile

MARK_NAME: Final = "flushed"
_MARK: Final = struct.Struct("<qqI")  # entry index, offset, the state of fsyncs. A CRC follows
MARK_SIZE: Final = _MARK.size + 4
_HINT: Final = "Check the disk, then restart the broker. Reads continue until then."
START: Final = Boundary(EntryIndex(0), Offset(0))


class FsyncState(IntEnum):
    """The state of a log's fsyncs, as recorded in its file ``flushed``."""

    DONE = 0
    FAILED = 1
    UNDER_WAY = 2


class Fsyncs:
    """The fsyncs of one log's files, until one fails. One caller at a time (the writer)."""

    def __init__(self, disk: Disk, directory: Path, names: Collection[str] = ()) -> None:
        """``names``: the names of the directory's files."""
        self.failed: StorageFailure | None = None
        self.when_failed: Callable[[], None] = lambda: None
        self._disk = disk
        self._directory = directory
        self._path = directory / MARK_NAME
        self._file: DiskFile | None = None
        self._upto = START
        self._state = FsyncState.DONE
        self._written = False
        if MARK_NAME in names:
            self._read()

    @property
    def upto(self) -> Boundary:
        """A position up to which everything was forced once. More may have been."""
        return self._upto

    @property
    def state(self) -> FsyncState:
        """The state of the fsyncs. After an open, it is the state left by an earlier process.

        Unless DONE, the disk may lack bytes after ``upto``.
        """
        return self._state

    def check(self) -> None:
        """Raise the log's failure, if it has failed."""
        if self.failed is not None:
            raise self.failed.again()

    def force(self, *files: DiskFile) -> None:
        """Force the files, in this order.

        Raises:
            DiskFull, StorageFailure: the state "under way" could not be written, or a file not be
                opened, and a later call can succeed. Or an fsync failed, now or earlier, and no
                call can succeed.
        """
        self.check()
        if self._state is FsyncState.DONE:
            self._write(self._upto, FsyncState.UNDER_WAY)
        for file in files:
            self._do(file.flush, may_retry=True)
        if self._state is FsyncState.DONE:
            with suppress(IsologError):  # without this state, the next open only rewrites more
                self._write(self._upto, FsyncState.DONE)

    def force_names(self, *, may_retry: bool = False) -> None:
        """Fsync the log's directory. Errors: as for :meth:`force`.

        ``may_retry``: if the directory cannot be opened, the caller retries.
        """
        self._do(self._disk.sync_directory, self._directory, may_retry=may_retry)

    def make_directory(self) -> None:
        """Make the log's directory, and a durable note beside it that the log has begun.

        Raises:
            DiskFull, StorageFailure: the directory could not be made, and a later call can succeed.
                Or as for :meth:`force`.
        """
        self.check()
        try:
            make_log_directory(self._disk, self._directory)
        except IsologError as error:
            if error.details.get("unforced"):
                raise self._failure(error) from error
            raise

    def mark(self, upto: Boundary) -> None:
        """Record that everything before ``upto`` is on the disk."""
        if upto == self._upto and self._state is FsyncState.DONE:
            return
        self._upto, self._state = upto, FsyncState.DONE
        # The mark may be too low, so a failed write of it loses nothing.
        with suppress(IsologError):
            self._write(upto, FsyncState.DONE)

    def lower(self, upto: Boundary) -> None:
        """Lower the mark to ``upto``, durably. This comes before the log is truncated there.

        Raises:
            StorageFailure: the lowered mark may not be on the disk. If its fsync failed, the log
                has failed.
        """
        self.check()
        if self._upto.entry <= upto.entry:
            return
        self._do(self._write(upto, self._state).flush)
        self._upto = upto

    def fail(self, message: str) -> IsologError:
        """Mark the log as failed, also for the next process that opens it. Return the error."""
        failure = self.give_up(message)
        with suppress(IsologError):
            self._write(self._upto, FsyncState.FAILED)
        return failure

    def give_up(self, message: str) -> IsologError:
        """Refuse writes to the log until it is opened again. Return the error to raise."""
        if self.failed is None:
            self.failed = StorageFailure(message, hint=_HINT, path=str(self._directory))
            self.when_failed()
        return self.failed.again()

    def close(self, *, forced: bool) -> None:
        """Close the mark's file. ``forced``: force the mark, so that it survives a power cut."""
        if self._file is None:
            return
        with suppress(IsologError):
            if forced and self._written and self.failed is None:
                self._file.flush()
        self._file.close()

    def _do(self, act: Callable[..., None], *arguments: Path, may_retry: bool = False) -> None:
        self.check()
        try:
            act(*arguments)
        except IsologError as error:
            if may_retry and isinstance(error, TooManyOpenFiles):
                raise  # before the fsync
            raise self._failure(error) from error

    def _failure(self, error: IsologError) -> IsologError:
        """Mark the log as failed after this error of an fsync. Return the error to raise."""
        return self.fail(
            f"{self._directory}: fsync failed ({error.message}); the partition accepts no writes"
            " until it is opened again"
        )

    def _write(self, upto: Boundary, state: FsyncState) -> DiskFile:
        if self._file is None:
            self._file = self._disk.create(self._path)
        packed = _MARK.pack(upto.entry, upto.offset, state)
        self._written = True
        self._file.write(0, packed + crc32c(packed).to_bytes(4, "little"))
        return self._file

    def _read(self) -> None:
        self._file = self._disk.open(self._path)
        raw = bytes(self._disk.map(self._path))
        if len(raw) != MARK_SIZE or int.from_bytes(raw[-4:], "little") != crc32c(raw[:-4]):
            return
        entry, offset, state = _MARK.unpack(raw[:-4])
        self._upto = Boundary(EntryIndex(entry), Offset(offset))
        self._state = FsyncState(state)
