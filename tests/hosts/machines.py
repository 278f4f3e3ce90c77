"""The clock of a host, and the space on its disk."""

from __future__ import annotations

import os
import subprocess
from contextlib import suppress
from pathlib import Path
from typing import Final

from spark_stream.testing.local_cluster import ProcessPlace

_CLOCK: Final = Path(__file__).with_name("clock")
_FILLER: Final = "filler"


def with_clock(place: ProcessPlace, offset_s: int) -> ProcessPlace:
    """Return the place with a wrong wall clock for Python programs."""
    path = os.pathsep.join([str(_CLOCK), os.environ.get("PYTHONPATH", "")]).rstrip(os.pathsep)
    clock = ("env", f"PYTHONPATH={path}", f"ISOLOG_CLOCK_OFFSET_S={offset_s}")
    return place._replace(prefix=(*place.prefix, *clock))


class SmallDisk:
    """A separate disk for a folder. Needs root."""

    def __init__(self, folder: Path, megabytes: int) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._folder = folder
        size = f"size={megabytes}m"
        subprocess.run(["mount", "-t", "tmpfs", "-o", size, "isolog", str(folder)], check=True)

    def fill(self) -> None:
        """Fill the disk."""
        room = os.statvfs(self._folder)
        with (self._folder / _FILLER).open("wb") as file, suppress(OSError):
            os.posix_fallocate(file.fileno(), 0, room.f_bavail * room.f_bsize)

    def clear(self) -> None:
        """Free the space."""
        (self._folder / _FILLER).unlink(missing_ok=True)

    def close(self) -> None:
        """Remove the disk with its content."""
        subprocess.run(["umount", "--lazy", str(self._folder)], check=True)
