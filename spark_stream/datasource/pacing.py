"""How much of a backlog a micro-batch takes: a limit, shared out by the partitions' backlogs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeVar

K = TypeVar("K")


def shared_out(backlog: Mapping[K, int], limit: int, turn: int = 0) -> dict[K, int]:
    """How many records each partition gives; together ``limit``, or the whole backlog if less.

    Every partition that has a backlog gives one at least, and beyond that in proportion, remainders
    to the largest fractions. Where the limit is too small for that, partitions take turns.

    ``backlog`` names all partitions, those without a backlog too, always in the same order.
    ``turn`` is how many records they gave before, in all: so a batch that is planned again comes
    out the same, and of n partitions each is asked within n / limit batches, rounded up.
    """
    if sum(backlog.values()) <= limit:
        return dict(backlog)
    waiting = sum(1 for size in backlog.values() if size)
    return _in_turn(backlog, limit, turn) if waiting > limit else _in_proportion(backlog, limit)


def _in_turn(backlog: Mapping[K, int], limit: int, turn: int) -> dict[K, int]:
    """One record each of the first partitions with a backlog, from the place of the turn on.

    The turn moves on by the limit with every such batch, so the places pass by all partitions.
    """
    keys = list(backlog)
    first = turn % len(keys)
    waiting = [key for key in (*keys[first:], *keys[:first]) if backlog[key]]
    return dict.fromkeys(backlog, 0) | dict.fromkeys(waiting[:limit], 1)


def _in_proportion(backlog: Mapping[K, int], limit: int) -> dict[K, int]:
    taken = dict.fromkeys(backlog, 0)
    sizes = {key: size for key, size in backlog.items() if size}
    left, total = limit, sum(sizes.values())
    # Who would get less than one record gets one, which leaves less for the others; so again.
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
