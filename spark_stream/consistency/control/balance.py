"""When a leader hands its partition to the preferred leader, which is the first of the replicas.

**Rule.** The preferred leader must have been able to lead for a *settle time* without interruption:
alive, in sync, in the same start of its broker, and under the same leader. So a broker that keeps
restarting gets nothing back, and a partition goes to its preferred leader at most once in that
time. Then the preferred leader's log has to take a write. If it does not, the settle time starts
again. At most ``AT_ONCE_MAX`` partitions are handed over together, those that have waited longest
first.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from typing import Final, TypeVar

from msgspec import Struct

AT_ONCE_MAX: Final = 50

_K = TypeVar("_K", bound=Hashable)


class Settling(Struct, frozen=True):
    """A partition whose preferred leader can lead.

    Attributes:
        under: What must not change: the leader epoch, and the start of the preferred broker.
        since: Since when it has not changed, in microseconds of the steady clock.
    """

    under: Hashable
    since: int


def after_look(
    known: Mapping[_K, Settling], able: Mapping[_K, Hashable], now: int
) -> dict[_K, Settling]:
    """Return the settling partitions, given those whose preferred leader can lead now."""
    return {
        key: before
        if (before := known.get(key)) is not None and before.under == under
        else Settling(under, now)
        for key, under in able.items()
    }


def due(known: Mapping[_K, Settling], settle_us: int, now: int) -> list[_K]:
    """Return the partitions to hand over now."""
    settled = [key for key, each in known.items() if each.since + settle_us <= now]
    return sorted(settled, key=lambda key: known[key].since)[:AT_ONCE_MAX]
