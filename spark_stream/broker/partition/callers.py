"""Who waits for a partition: appends for their acknowledgements, reads for something to see.

The partition's core (``consistency.partition.replica``) gives each waiter a number; its effects
list the waiters to release. This module has the caller of each number. All of it runs under the
partition's lock.
"""

from __future__ import annotations

import itertools

from spark_stream.broker.partition.outcomes import Acknowledgement, WakeUp
from spark_stream.consistency.partition.effects import Abandon, Answer, Disown, Effects, Wake
from spark_stream.errors import IsologError, NotLeader, UnknownOutcome


class Callers:
    """Those who wait for one partition; ``partition`` is its name in errors."""

    def __init__(self, partition: str) -> None:
        self._partition = partition
        self._numbers = itertools.count()
        self._appends: dict[int, Acknowledgement] = {}
        self._reads: dict[int, WakeUp] = {}

    @property
    def reads(self) -> int:
        """How many reads wait."""
        return len(self._reads)

    def new_number(self) -> int:
        """Return a number that no other caller has."""
        return next(self._numbers)

    def add_append(self, number: int) -> Acknowledgement:
        """Let an append wait under this number. Return what it waits for."""
        acknowledgement = self._appends[number] = Acknowledgement(number)
        return acknowledgement

    def add_read(self, number: int, wake: WakeUp) -> None:
        """Let a read wait under this number until it is woken."""
        self._reads[number] = wake

    def remove(self, number: int) -> None:
        """Remove the caller of this number: it does not wait any more."""
        self._appends.pop(number, None)
        self._reads.pop(number, None)

    def carry_out(self, effects: Effects) -> tuple[WakeUp, ...]:
        """Settle appends as the effects say.

        Return what to call when the lock is free: appends are acknowledged, then reads woken.
        """
        settled: list[WakeUp] = []
        woken: list[WakeUp] = []
        for effect in effects:
            if isinstance(effect, Wake):
                woken += [self._reads.pop(number) for number in effect.waiters]
            elif isinstance(effect, Answer):
                settled += [self._appends.pop(number).settle() for number in effect.tickets]
            elif isinstance(effect, Disown):
                for number in effect.tickets:
                    cut = UnknownOutcome(f"{self._partition}: a new leader cut the records off")
                    settled.append(self._appends.pop(number).settle(cut))
            elif isinstance(effect, Abandon):
                for number in effect.tickets:
                    settled.append(self._appends.pop(number).settle(self._abandoned()))
        return (*settled, *woken)

    def end_all(self, failure: IsologError) -> tuple[WakeUp, ...]:
        """Let all appends fail and all reads end; return what to call when the lock is free."""
        others_lead = isinstance(failure, NotLeader)
        settled = [
            each.settle(self._abandoned() if others_lead else failure.again())
            for each in self._appends.values()
        ]
        woken = (*settled, *self._reads.values())
        self._appends.clear()
        self._reads.clear()
        return woken

    def _abandoned(self) -> NotLeader:
        """Return the error of an append that is in the log; another leader will acknowledge it."""
        return NotLeader(f"{self._partition}: another broker leads now", leader="", appended=True)
