"""Slowly reads all segments to find out whether they still hold what was written.

Only a reader notices a byte that has changed on a disk, and it may come in a year, or never; until
then the replica counts as a good one, and may be elected when the really good ones are gone. So all
segments are read again and again, at a pace that leaves the disk to others, from the disk itself,
not from memory (``storage.segment.checking``). The first look begins when the broker has started.

One thread does it. It holds no lock while it reads, and can stop between two pieces.
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
from spark_stream.storage.segment.checking import CheckedPiece

logger = logger_of(__name__)

BEGIN_S: Final = 0.5
"""How long after the start the first look begins."""
_BREATH_S: Final = 0.02  # shorter waits are added up


class Looked(Struct, frozen=True):
    """What a whole look has found. ``ended_us``: by the wall clock; ``damaged`` counts batches."""

    ended_us: int
    size: int
    damaged: int


class Scrub:
    """Looks at all segments of a broker, at a bounded pace."""

    def __init__(
        self,
        host: Host,
        clock: Clock,
        bytes_per_second: int,
        period_s: float,
        stopped: threading.Event,
    ) -> None:
        """``bytes_per_second``: 0 for no looks. ``period_s``: from one look to the next."""
        self._host = host
        self._clock = clock
        self._pace = bytes_per_second
        self._period_s = period_s
        self._stopped = stopped
        self._owed_s = 0.0
        self.last: Looked | None = None
        """The last whole look, or None if there was none yet."""
        self.read_bytes = self.damaged = 0
        """How many bytes it has read, and how many damaged batches it has found, in all looks."""

    def look(self) -> float:
        """Look at everything once; return in how many seconds to look again."""
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
        self.last = Looked(self._clock.wall_us(), size, damaged)
        level = logging.ERROR if damaged else logging.INFO
        logger.log(
            level,
            "stored records: %d bytes were read in %.1f s, and %s",
            size,
            took_s,
            f"{damaged} batches are damaged" if damaged else "all of them are sound",
        )
        return max(BEGIN_S, self._period_s - took_s)

    def _settle(self, partition: Partition, piece: CheckedPiece) -> int:
        """Let the log confirm the piece's suspects; return how many are damaged."""
        found = 0
        for suspect in piece.suspects:
            if partition.confirm(suspect):
                found += 1
                logger.error(
                    "%s: entry %d in %s, or its batch, fails its checksum or cannot be read",
                    partition.name,
                    suspect.entry,
                    suspect.path,
                )
        return found

    def _go_on(self, size: int) -> bool:
        """Wait as long as these bytes take at the pace. Return False if the broker stops."""
        self._owed_s += size / self._pace
        if self._owed_s < _BREATH_S:
            return not self._stopped.is_set()
        owed, self._owed_s = self._owed_s, 0.0
        return not self._stopped.wait(owed)
