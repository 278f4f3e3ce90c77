"""How much of a backlog a micro-batch takes: a limit, shared out by the partitions' backlogs.

A batch that is planned again has to come out the same. So whose turn it is depends only on how many
records the query has read before.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from typing import TypeVar

K = TypeVar("K")


def shared_out(backlog: Mapping[K, int], limit: int, turn: int = 0) -> dict[K, int]:
    """Return how many records each partition gives: ``limit`` in all, or the backlog if less.

    Every partition with a backlog gives at least one record, and more in proportion; what is left
    over goes to the largest fractions. If the limit is too small for that, partitions take turns.

    ``backlog`` names all partitions, those without a backlog too, always in the same order.
    ``turn`` is how many records they gave before, in all: so a batch that is planned again comes
    out the same, and of n partitions each is asked within n / limit batches, rounded up.
    """
    if sum(backlog.values()) <= limit:
        return dict(backlog)
    waiting = sum(1 for size in backlog.values() if size)
    return _in_turn(backlog, limit, turn) if waiting > limit else _in_proportion(backlog, limit)


def _in_turn(backlog: Mapping[K, int], limit: int, turn: int) -> dict[K, int]:
    """Take one record each of the first partitions with a backlog, starting at the turn's place.

    The turn moves on by the limit with every such batch, so it comes to every partition.
    """
    keys = list(backlog)
    first = turn % len(keys)
    waiting = [key for key in (*keys[first:], *keys[:first]) if backlog[key]]
    return dict.fromkeys(backlog, 0) | dict.fromkeys(waiting[:limit], 1)


def _in_proportion(backlog: Mapping[K, int], limit: int) -> dict[K, int]:
    taken = dict.fromkeys(backlog, 0)
    sizes = {key: size for key, size in backlog.items() if size}
    left, total = limit, sum(sizes.values())
    # A partition that would give less than one record gives one; less is left for the others, so
    # look again.
    while small := [key for key, size in sizes.items() if size * left < total]:
        for key in small:
            taken[key] = 1
            total -= sizes.pop(key)
        left -= len(small)
    exact = {key: divmod(size * left, total) for key, size in sizes.items()}
    taken |= {key: whole for key, (whole, _) in exact.items()}
    left = limit - sum(taken.values())
    by_remainder = sorted(exact, key=lambda key: exact[key][1], reverse=True)
    for key in by_remainder[:left]:
        taken[key] += 1
    return taken


def shared_bytes(backlog: Mapping[K, tuple[int, int]], limit: int, turn: int = 0) -> dict[K, int]:
    """Return how many bytes each partition gets: at most ``limit`` in all, or the backlog if less.

    ``backlog`` has the bytes of each partition's records, and those of its first one; ``turn`` is
    how many records were read before. As many partitions as possible get their first record, and
    the rest is shared out in proportion. The first in turn always gets its first record, even if
    that alone is larger than the limit: so a query gets past every record.
    """
    if sum(size for size, _ in backlog.values()) <= limit:
        return {key: size for key, (size, _) in backlog.items()}
    keys = [key for key, (size, _) in backlog.items() if size]
    # Not turn % len(keys): if every batch has the same number of records, that may always be the
    # same partition.
    at = random.Random(turn).randrange(len(keys))
    given = dict.fromkeys(backlog, 0)
    left = limit
    for place, key in enumerate((*keys[at:], *keys[:at])):
        first = backlog[key][1]
        if first <= left or place == 0:
            given[key] = first
            left -= first
    beyond = {key: backlog[key][0] - first for key, first in given.items() if first}
    if left > 0:
        for key, share in shared_out(beyond, left).items():
            given[key] += share
    return given
