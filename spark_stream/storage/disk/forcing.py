"""Which part of a log is certainly on the disk, and whether the log can still vouch for it.

After a force has failed, no other is tried: the system may have dropped what it could not write,
and a second force would succeed without writing it. The log has then failed: it takes no appends
until it is opened again. Reads of published records go on.

The file ``flushed`` says how far a log was forced: 24 bytes, written in place, and forced itself
only when the log closes. So it never says too much, and may say too little. At the next open it
shows that a missing entry was once on the disk. It also says whether a force is under way, or has
failed: the system may then show what the disk never got, so the next open writes everything again
that is not known to be on the disk. Order of writes: the note that a force is under way, the force,
then the note how far it went. If the first note cannot be written, nothing is forced: a full disk
might take no note afterwards, and a process may end before it writes one.
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
from spark_stream.consistency.replication.leader import Boundary
from spark_stream.errors import IsologError, StorageFailure
from spark_stream.storage.disk.directory import make_directory
from spark_stream.storage.disk.disk import Disk, DiskFile

MARK_NAME: Final = "flushed"
_MARK: Final = struct.Struct("<qqI")  # entry index, offset, the state of forces; then a CRC
MARK_SIZE: Final = _MARK.size + 4
_HINT: Final = "Check the disk, then restart the broker; reads go on meanwhile."
START: Final = Boundary(EntryIndex(0), Offset(0))


class Forces(IntEnum):
    """The state of a log's forces, as its file ``flushed`` says."""

    DONE = 0
    FAILED = 1
    UNDER_WAY = 2


class Forcing:
    """Forces the files of one log, until that fails. One caller at a time (the writer)."""

    def __init__(self, disk: Disk, directory: Path, names: Collection[str] = ()) -> None:
        """``names``: what is in the directory."""
        self.failed: StorageFailure | None = None
        self.when_failed: Callable[[], None] = lambda: None
        self._disk = disk
        self._directory = directory
        self._path = directory / MARK_NAME
        self._file: DiskFile | None = None
        self._upto = START
        self._state = Forces.DONE
        self._written = False
        if MARK_NAME in names:
            self._read()

    @property
    def upto(self) -> Boundary:
        """Everything before it was forced once; there may be more."""
        return self._upto

    @property
    def state(self) -> Forces:
        """How the forces of an earlier process ended.

        Unless DONE, the disk may lack something after ``upto``.
        """
        return self._state

    def check(self) -> None:
        """Raise the failure if there was one."""
        if self.failed is not None:
            raise self.failed.again()

    def force(self, *files: DiskFile) -> None:
        """Force the files, in this order.

        Raises:
            DiskFull, StorageFailure: the note that a force is under way could not be written: try
                later. Or a force failed, now or earlier: then no force is tried again.
        """
        self.check()
        if self._state is Forces.DONE:
            self._write(self._upto, Forces.UNDER_WAY)
        for file in files:
            self._do(file.flush)
        if self._state is Forces.DONE:
            with suppress(IsologError):  # without this note the next open only writes more again
                self._write(self._upto, Forces.DONE)

    def force_names(self) -> None:
        """Force the names in the log's directory; raise what :meth:`force` raises."""
        self._do(self._disk.sync_directory, self._directory)

    def make_directory(self) -> None:
        """Make the log's directory, and a durable note beside it that the log has begun.

        Raises also what :meth:`force` raises.

        Raises:
            DiskFull, StorageFailure: the directory could not be made; a later call can succeed.
        """
        self.check()
        try:
            make_directory(self._disk, self._directory)
        except IsologError as error:
            if error.details.get("unforced"):
                raise self._failure(error) from error
            raise

    def mark(self, upto: Boundary) -> None:
        """Record that everything before ``upto`` is on the disk."""
        if upto == self._upto and self._state is Forces.DONE:
            return
        self._upto, self._state = upto, Forces.DONE
        # The mark may lag behind, so a log loses nothing if the disk has no room for the mark.
        with suppress(IsologError):
            self._write(upto, Forces.DONE)

    def lower(self, upto: Boundary) -> None:
        """Lower the mark to ``upto``, durably, before what lies after it is cut.

        Raises:
            StorageFailure: the lowered mark may not be on the disk; if its force failed, the log
                has failed.
        """
        self.check()
        if self._upto.entry <= upto.entry:
            return
        self._do(self._write(upto, self._state).flush)
        self._upto = upto

    def fail(self, message: str) -> IsologError:
        """Mark the log as failed, also for the next process that opens it; return the error."""
        failure = self.give_up(message)
        with suppress(IsologError):
            self._write(self._upto, Forces.FAILED)
        return failure

    def give_up(self, message: str) -> IsologError:
        """Refuse writes to the log until it is opened again; return the error to raise."""
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

    def _do(self, act: Callable[..., None], *arguments: Path) -> None:
        self.check()
        try:
            act(*arguments)
        except IsologError as error:
            raise self._failure(error) from error

    def _failure(self, error: IsologError) -> IsologError:
        """Return the error to raise from now on, after this error of a force."""
        return self.fail(
            f"{self._directory}: what was written could not be forced to the disk"
            f" ({error.message}); the partition takes no more until it is opened again"
        )

    def _write(self, upto: Boundary, state: Forces) -> DiskFile:
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
        self._state = Forces(state)
