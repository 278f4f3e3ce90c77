"""Which closed segments retention removes, and when that is due: no file is touched here."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct

from spark_stream.storage.settings import LogSettings


class SegmentFacts(Struct, frozen=True):
    """What retention needs to know of a closed segment. Times in microseconds since the epoch."""

    size: int
    last_appended: int | None
    end_offset: int


def removable(
    closed: Sequence[SegmentFacts], active_size: int, settings: LogSettings, now: int, limit: int
) -> int:
    """Return how many of the oldest closed segments go, by age and by size.

    A segment goes only as a whole, only if all older ones go, and never if it holds an offset at or
    above ``limit`` (the last stable offset). By size, the log keeps at least ``retention.bytes``.
    """
    total = active_size + sum(segment.size for segment in closed)
    oldest_kept = None if settings.retention_ms < 0 else now - settings.retention_ms * 1000
    gone = 0
    for segment in closed:
        last = segment.last_appended
        too_old = oldest_kept is not None and (last is None or last < oldest_kept)
        too_much = 0 <= settings.retention_bytes <= total - segment.size
        if segment.end_offset > limit or not (too_old or too_much):
            break
        total -= segment.size
        gone += 1
    return gone


def is_too_old(settings: LogSettings, last: int | None, now: int) -> bool:
    """Return whether even the newest record, appended at ``last``, is past its retention."""
    return 0 <= settings.retention_ms * 1000 < now - last if last is not None else False


def due_by_age(
    settings: LogSettings, first: int | None, last: int | None, oldest: int | None
) -> int | None:
    """Return from when on age alone asks for a roll or a removal; None: it never does.

    ``first`` and ``last`` are the first and the last append to the active segment, None while it
    has no record; ``oldest`` is the last append to the oldest closed one. Times in microseconds.
    """
    ends = [] if first is None else [first + settings.segment_ms * 1000]
    if settings.retention_ms >= 0:
        retained = settings.retention_ms * 1000
        ends += [each + retained for each in (last, oldest) if each is not None]
    return min(ends) + 1 if ends else None
