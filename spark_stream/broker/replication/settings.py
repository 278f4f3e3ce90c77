"""Limits of bytes in flight on replication streams, and the timeouts of silent peers."""

from __future__ import annotations

from typing import Final

from msgspec import Struct

FRAME_BYTES: Final = 1 << 20
"""The bytes that a partition sends in its turn. Larger frames would save little overhead and would
delay the next partition. A batch above this size is sent alone."""

BEHIND_SHARE: Final = 4
"""Partitions whose followers are far behind share this fraction (one fourth) of a stream's window.
Bytes in flight delay live records, and four frames keep a fast line busy."""

STEPS_AT_ONCE: Final = 16
"""The steps of one stream in a row, before other streams use the pool's thread."""

STEPS_AFTER_APPEND: Final = 2
"""The steps of a thread after its append: a frame, and the check for more."""

HIGH_WATERMARK_LINGER_S: Final = 0.01
"""The longest wait of a new high watermark for a frame of entries that carries it."""

SLOWEST_LINE: Final = 4 << 20
"""Bytes per second. A follower is silent while it receives a large batch, so its timeout includes
the time of the bytes in flight on a slow line."""

ENDING_S: Final = 1.0
"""The time for the peer to end its side of a stream, before the connection is closed."""


class ReplicationSettings(Struct, frozen=True):
    """The settings of one broker.

    ``beat_s``: the silence after which a leader sends its follower a heartbeat.
    ``death_s``: the silence after which either side closes the connection.
    ``stream_bytes``: the limit of bytes in flight, or not yet appended, on one stream.
    ``follower_bytes``: the same limit for all streams on which this broker follows, together.
    ``frame_bytes``: the bytes that a partition sends in its turn.
    """

    beat_s: float = 1.0
    death_s: float = 3.0
    stream_bytes: int = 16 << 20
    follower_bytes: int = 64 << 20
    frame_bytes: int = FRAME_BYTES

    def window(self, streams: int) -> int:
        """Return the window of each stream of a broker that follows on this number of streams."""
        return max(self.frame_bytes, min(self.stream_bytes, self.follower_bytes // max(1, streams)))
