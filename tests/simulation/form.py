"""The form of a run: its seed and its actors. The same form is the same run."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from random import Random
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

CLIENTS: Final = {
    "transactions": 5,
    "plain": 3,
    "sink": 2,
    "reader": 3,
    "cutter": 2,
    "consumer": 2,
    "operator": 2,
    "topics": 2,
    "mover": 2,
}
"""Kinds of clients, and how likely each is next to the others."""
TRIMMER: Final = "trimmer"
"""A client that moves log starts."""
_TRIMS: Final = 1 / 8
"""The part of the runs that has this client."""
GROUP_CLIENTS: Final = {"transactions": 3, "plain": 1, "operator": 3, "topics": 2, "mover": 1}
"""Kinds of clients beside the members of a group."""
FAULTS: Final = {
    "crash": 5,
    "power-cut": 3,
    "sudden-end": 4,
    "pause": 4,
    "failed-force": 3,
    "full-disk": 2,
    "bad-network": 3,
    "split": 4,
    "slow-follower": 3,
    "restart": 2,
    "wipe": 1,
    "blackout": 1,
    "lost-race": 2,
    "clock-step": 1,
    "lone-leader": 10,
    "store-outage": 6,
}
"""Kinds of faults, and how likely each is next to the others."""
NAMED_FAULTS: Final = ("changed-byte", "changed-bytes", "dead-disk")
"""Kinds of faults that no seed draws: a form has to name them."""
GROUP_FAULTS: Final = {
    "crash": 5,
    "pause": 5,
    "bad-network": 15,
    "split": 2,
    "restart": 2,
    "lost-race": 3,
    "clock-step": 1,
    "store-outage": 6,
}
"""Kinds of faults in runs with a group: those that affect its members."""
GROUPS_FROM: Final = 1_000_000_000
"""Seeds from here on stand for runs with a consumer group."""
GROUP: Final = "shared"
"""The group's name."""
SESSION_MS: Final = 4_000
"""Of its members."""
DISK_FAULTS: Final = ("power-cut", "power-cut", "sudden-end", "failed-force", "full-disk")


class Form(Struct, frozen=True):
    """A run. ``actors`` are its clients and faults by name, ``order`` is another order of events.

    Every actor's own choices come from the seed and its name: without one of them, the others make
    the same choices, in another order.
    """

    seed: int
    brokers: int
    topics: int
    actors: tuple[str, ...]
    order: int = 0

    def has_fault(self, kinds: Collection[str]) -> bool:
        """Whether one of these kinds of faults happens, or of clients takes part."""
        return any(each.rpartition("-")[0] in kinds for each in self.actors)

    def chance(self, purpose: str) -> Random:
        """A source of chance for one purpose of this run."""
        return Random(f"{self.seed} {purpose}")

    def without(self, names: Iterable[str]) -> Form:
        gone = set(names)
        return replace(self, actors=tuple(each for each in self.actors if each not in gone))

    def command(self) -> str:
        """The command that repeats this run."""
        words = [f"make simulate RUNS=1 SEED={self.seed}"]
        drawn = draw(self.seed)
        if self.actors != drawn.actors:
            words.append(f'ONLY="{" ".join(self.actors)}"')
        if self.order:
            words.append(f"ORDER={self.order}")
        return " ".join(words)


def draw(seed: int) -> Form:
    """The form that a seed stands for."""
    chance = Random(f"{seed} form")
    brokers = chance.choices((1, 2, 3), (2, 3, 5))[0]
    if seed >= GROUPS_FROM:
        others = chance.choices(
            list(GROUP_CLIENTS), list(GROUP_CLIENTS.values()), k=chance.randint(0, 2)
        )
        members = ["member"] * chance.randint(2, 4)
        faults = chance.choices(
            list(GROUP_FAULTS), list(GROUP_FAULTS.values()), k=chance.randint(0, 3)
        )
        return Form(seed, brokers, chance.choice((1, 2)), _named([*members, *others, *faults]))
    hurts_disk = chance.random() < 1 / 8
    topics = chance.choice((1, 1, 2))
    clients = chance.choices(list(CLIENTS), list(CLIENTS.values()), k=chance.randint(2, 4))
    if "transactions" not in clients and "sink" not in clients:
        clients.append("transactions")
    faults = chance.choices(list(FAULTS), list(FAULTS.values()), k=chance.randint(0, 3))
    if hurts_disk:
        faults.append(chance.choice(DISK_FAULTS))
    if Random(f"{seed} trims").random() < _TRIMS:  # drawn apart: all other runs stay as they were
        faults.append(TRIMMER)
    return Form(seed, brokers, topics, _named([*clients, *faults]))


def _named(kinds: Iterable[str]) -> tuple[str, ...]:
    return tuple(f"{kind}-{number}" for number, kind in enumerate(kinds))
