"""A closed segment's *tail*: batches in its ``.arrow`` file that no entry names any more.

Truncating a log leaves a tail there (``truncation``), which confuses other readers of Arrow files.
To drop the tail, the file is copied without it. The copy may take a second for a large segment and
needs no lock; only the renaming needs the writer's. The batches that stay are at the same place in
both files, so a reader may have mapped either.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Final

from spark_stream.storage.disk.disk import Disk
from spark_stream.storage.disk.forcing import Forcing
from spark_stream.storage.format.codec import END_OF_STREAM
from spark_stream.storage.segment.segment import Segment

ENDING: Final = ".short"
"""The end of the copy's name until the copy replaces the file."""


class ShorterCopy:
    """A copy of a segment's ``.arrow`` file without its tail, forced to the disk."""

    def __init__(self, disk: Disk, segment: Segment) -> None:
        """Make the copy.

        Raises:
            DiskFull, StorageFailure: no copy was made; the next attempt is after the next open.
        """
        self._disk = disk
        self._segment = segment
        arrow = segment.name.arrow
        self._path = Path(f"{arrow}{ENDING}")
        segment.has_tail = False  # also if the copy fails: no second attempt before the next open
        kept = disk.map(arrow).slice(0, segment.data_end)
        disk.write_whole(self._path, [kept, END_OF_STREAM])

    def settle(self, segments: Sequence[Segment], forcing: Forcing) -> None:
        """Replace the file with the copy if the segment is still one of these, else drop the copy.

        Raises:
            StorageFailure: replacing or dropping failed; the next open removes what is left.
        """
        if self._segment in segments and forcing.failed is None:
            self._disk.rename(self._path, self._segment.name.arrow)
            forcing.force_names()
            self._segment.drop_tail()
        else:
            self._disk.remove(self._path)
