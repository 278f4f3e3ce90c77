"""How much may be under way on the streams of replication, and when a silent peer is dead."""

from __future__ import annotations

from typing import Final

from msgspec import Struct

FRAME_BYTES: Final = 1 << 20
"""What a partition sends in its turn: large enough to be free, small enough that the next partition
does not wait for long. A batch that is larger goes alone."""

BEHIND_SHARE: Final = 4
"""Partitions whose followers are far behind share this part of a stream's window: bytes in flight
delay live records, and four frames keep a fast line busy."""

STEPS_AT_ONCE: Final = 16
"""Steps of one stream, after which others have their turn in the pool."""

STEPS_AFTER_APPEND: Final = 2
"""Steps that a thread does after it has appended: a frame, and the check for more."""

HIGH_WATERMARK_LINGER_S: Final = 0.01
"""How long a high watermark waits for a frame that takes it along."""

SLOWEST_LINE: Final = 4 << 20
"""Bytes a second. A follower that is still receiving a large batch is silent: it is allowed the
time that the bytes under way take on a slow line."""

ENDING_S: Final = 1.0
"""How long the other side has to end its part of a stream before the connection is ended."""


class ReplicationSettings(Struct, frozen=True):
    """The settings of one broker.

    ``beat_s``: after so long without a word a leader asks its follower for a sign of life.
    ``death_s``: after so long without one the connection is ended, by either side.
    ``stream_bytes``: what may be on its way, or not yet appended, on one stream.
    ``follower_bytes``: the same for all streams on which this broker follows, together.
    ``frame_bytes``: what a partition sends in its turn.
    """

    beat_s: float = 1.0
    death_s: float = 3.0
    stream_bytes: int = 16 << 20
    follower_bytes: int = 64 << 20
    frame_bytes: int = FRAME_BYTES

    def window(self, streams: int) -> int:
        """Return the window of each stream if a broker follows on so many."""
        return max(self.frame_bytes, min(self.stream_bytes, self.follower_bytes // max(1, streams)))
