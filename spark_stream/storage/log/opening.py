"""What a log's directory holds when somebody opens it, and what is made good before it is used.

What a crash left half done is finished, what is damaged is cut off and kept aside (``recovery``),
and what somebody may have been told is there is forced.
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
    """Open the existing files. ``losing``: as :class:`~spark_stream.storage.logs.FileLogs`.

    Raises:
        DamagedSegment: a file that cannot be rebuilt is missing.
    """
    names = disk.names(directory)
    forcing = Forcing(disk, directory, names)
    failed = forcing.state is Forces.FAILED
    if failed:
        losing()  # before all that may keep the log from opening
    names = finish_replacements(disk, directory, names)
    files = SegmentFiles(disk, directory, log_format, names)
    found = Recovery(disk, directory, log_format, forcing, files, losing).recovered()
    doubtful = forcing.state is not Forces.DONE
    if doubtful:
        found.active.write_again(int(forcing.upto.entry))
    # A process may have ended between a write and its force; who sends that batch again is told
    # that it is there.
    promised = log_format.settings.flush is Flush.BATCH
    unforced = found.active.end.entry > forcing.upto.entry
    if doubtful or (promised and unforced):
        found.active.flush()
        forcing.mark(found.active.end)
    if names and not len(found.active.table):
        # An earlier process may have died while it cut the log back: that is done for good now.
        with suppress(IsologError):  # then the log has failed, and is read
            forcing.force_names()
    lost = not names and is_lost(disk, directory)
    return Opened(found, forcing, not (lost or failed or any(cut.grave for cut in found.cuts)))
