"""How much of a backlog a micro-batch takes: a limit, shared out by the partitions' backlogs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeVar

K = TypeVar("K")


def shared_out(backlog: Mapping[K, int], limit: int) -> dict[K, int]:
    """How many records each partition gives; together ``limit``, or the whole backlog if less.

    In proportion to the backlogs, remainders to the largest fractions, so the sum is exact. A
    partition that gets none has less than its share of one record; it grows until it does.
    """
    total = sum(backlog.values())
    if total <= limit:
        return dict(backlog)
    exact = {key: divmod(size * limit, total) for key, size in backlog.items()}
    taken = {key: whole for key, (whole, _) in exact.items()}
    left = limit - sum(taken.values())
    by_remainder = sorted(exact, key=lambda key: exact[key][1], reverse=True)
    for key in by_remainder[:left]:
        taken[key] += 1
    return taken
