"""A closed segment's *tail*: batches in its ``.arrow`` file that no entry names any more.

Cutting a log back leaves it there (``truncation``), for other readers of Arrow files to stumble
over. It is dropped by a copy of the file without it, which may take a second for a large segment
and is made without any lock; only the renaming needs the writer's. The batches that stay are in
both files at the same place, so a reader does not care which of them it has mapped.
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
"""Of the copy's name until it takes the file's place."""


class ShorterCopy:
    """A copy of a segment's ``.arrow`` file without its tail, on the disk for certain."""

    def __init__(self, disk: Disk, segment: Segment) -> None:
        """Make the copy.

        Raises:
            DiskFull, StorageFailure: there is none; it is not tried again before the next open.
        """
        self._disk = disk
        self._segment = segment
        arrow = segment.name.arrow
        self._path = Path(f"{arrow}{ENDING}")
        segment.has_tail = False  # as far as anybody asks
        kept = disk.map(arrow).slice(0, segment.data_end)
        disk.write_whole(self._path, [kept, END_OF_STREAM])

    def settle(self, segments: Sequence[Segment], forcing: Forcing) -> None:
        """Replace the file with the copy if the segment is still one of these, else drop the copy.

        Raises:
            StorageFailure: the one or the other failed; the next open sees to what is left.
        """
        if self._segment in segments and forcing.failed is None:
            self._disk.rename(self._path, self._segment.name.arrow)
            forcing.force_names()
            self._segment.drop_tail()
        else:
            self._disk.remove(self._path)
