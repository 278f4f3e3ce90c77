"""Regular reads of all segments, to detect damage on the disk.

A changed byte on a disk is detected only by a reader, which may come after a year, or never. Until
then the replica counts as sound, and may be elected when the sound ones are lost. So all segments
are read again and again, at a pace that leaves the disk to others, from the disk itself if the
file system permits it (``storage.segment.checks``). The first pass begins when the broker has
started.

A single thread reads. It holds no lock while it reads, and can stop between two pieces.
"""

from __future__ import annotations

import logging
import threading
from typing import Final

from msgspec import Struct

from spark_stream.broker.host.host import Host
from spark_stream.broker.partition.partition import Partition
from spark_stream.environment import Clock
from spark_stream.loggers import logger_of
from spark_stream.storage.segment.checks import CheckedPiece

logger = logger_of(__name__)

BEGIN_S: Final = 0.5
"""The delay of the first pass after the start."""
_BREATH_S: Final = 0.02  # shorter waits are added up


class ScrubResult(Struct, frozen=True):
    """The result of a whole pass. ``ended_us``: by the wall clock; ``damaged`` counts batches."""

    ended_us: int
    size: int
    damaged: int


class Scrub:
    """Passes over all segments of a broker, at a bounded pace."""

    def __init__(
        self,
        host: Host,
        clock: Clock,
        bytes_per_second: int,
        period_s: float,
        stopped: threading.Event,
    ) -> None:
        """Create the scrub, which runs when :meth:`look` is called.

        ``bytes_per_second``: 0 disables it. ``period_s``: the time between the starts of two
        passes.
        """
        self._host = host
        self._clock = clock
        self._pace = bytes_per_second
        self._period_s = period_s
        self._stopped = stopped
        self._owed_s = 0.0
        self.last: ScrubResult | None = None
        """The last whole pass, or None if there was none yet."""
        self.read_bytes = self.damaged = 0
        """The bytes that were read, and the damaged batches that were found, in all passes."""

    def look(self) -> float:
        """Read all segments once. Return the seconds until the next pass."""
        if not self._pace:
            return self._period_s
        began = self._clock.monotonic()
        size = damaged = 0
        for partition in self._host.open_replicas():
            for piece in partition.log.check_stored():
                found = self._settle(partition, piece)
                size, damaged = size + piece.size, damaged + found
                self.read_bytes += piece.size
                self.damaged += found
                if not self._go_on(piece.size):
                    return self._period_s
        took_s = self._clock.monotonic() - began
        self.last = ScrubResult(self._clock.wall_us(), size, damaged)
        level = logging.ERROR if damaged else logging.INFO
        logger.log(
            level,
            "scrub: read %d bytes in %.1f s; %s",
            size,
            took_s,
            f"{damaged} batches are damaged" if damaged else "no damage found",
        )
        return max(BEGIN_S, self._period_s - took_s)

    def _settle(self, partition: Partition, piece: CheckedPiece) -> int:
        """Have the log confirm the piece's suspects. Return the number of damaged batches."""
        found = 0
        for suspect in piece.suspects:
            if partition.confirm(suspect):
                found += 1
                logger.error(
                    "damage in %s: entry %d or its batch fails its checksum or cannot be read (%s)",
                    partition.name,
                    suspect.entry,
                    suspect.path,
                )
        return found

    def _go_on(self, size: int) -> bool:
        """Wait for the time that these bytes take at the pace. Return False if the broker stops."""
        self._owed_s += size / self._pace
        if self._owed_s < _BREATH_S:
            return not self._stopped.is_set()
        owed, self._owed_s = self._owed_s, 0.0
        return not self._stopped.wait(owed)
