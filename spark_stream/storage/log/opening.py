"""What a log's directory holds when a log is opened, and what is repaired before its use.

An open finishes what a crash left half done, cuts off what is damaged and keeps it aside
(``recovery``), and forces what may have been acknowledged.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from msgspec import Struct

from spark_stream.errors import IsologError
from spark_stream.storage.disk.directory import is_lost
from spark_stream.storage.disk.disk import Disk
from spark_stream.storage.disk.forcing import Forces, Forcing
from spark_stream.storage.format.log_format import LogFormat
from spark_stream.storage.log.looking import SegmentFiles, finish_replacements
from spark_stream.storage.log.recovery import Recovered, Recovery
from spark_stream.storage.settings import Flush


class Opened(Struct, frozen=True):
    """``intact``: the log has all that it may have acknowledged, as far as its files tell."""

    found: Recovered
    forcing: Forcing
    intact: bool


def open_files(
    directory: Path, log_format: LogFormat, disk: Disk, losing: Callable[[], None]
) -> Opened:
    """Open the existing files. ``losing``: as in :class:`~spark_stream.storage.logs.FileLogs`.

    Raises:
        DamagedSegment: a file that cannot be rebuilt is missing.
    """
    names = disk.names(directory)
    forcing = Forcing(disk, directory, names)
    failed = forcing.state is Forces.FAILED
    if failed:
        losing()  # first: the rest may fail, and then the log does not open
    names = finish_replacements(disk, directory, names)
    files = SegmentFiles(disk, directory, log_format, names)
    found = Recovery(disk, directory, log_format, forcing, files, losing).recovered()
    doubtful = forcing.state is not Forces.DONE
    if doubtful:
        found.active.write_again(int(forcing.upto.entry))
    # A process may have ended between a write and its force. A producer that sends that batch
    # again learns that it is in the log, so it must be on the disk.
    promised = log_format.settings.flush is Flush.BATCH
    unforced = found.active.end.entry > forcing.upto.entry
    if doubtful or (promised and unforced):
        found.active.flush()
        forcing.mark(found.active.end)
    if names and not len(found.active.table):
        # An earlier process may have died during a truncation: make that permanent now.
        with suppress(IsologError):  # then the log has failed, and can still be read
            forcing.force_names()
    lost = not names and is_lost(disk, directory)
    return Opened(found, forcing, not (lost or failed or any(cut.grave for cut in found.cuts)))
