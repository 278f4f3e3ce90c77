"""A leader's promises that a transaction may write to its partition.

A batch in a transaction is taken only under a *confirmed join* of its (transaction, producer id).
The order of steps keeps every batch out of a transaction that has ended:

1. the leader opens a pending join;
2. it puts the join on record, then reads the transaction's record: an ended one refuses;
3. it confirms the join, unless that was cancelled meanwhile;
4. it takes the batches.

Whoever decides a transaction seals it in all partitions on its record before any is marked. A seal
cancels the transaction's joins, pending and confirmed; the drop of a branch cancels those of the
branch. Joins are looked up after the decision. If the decision came before the read in 2, the
record refuses. If it came later, the join was on record before the decision, and this partition is
sealed. A seal before 3 cancels the join; after a seal later than 3, the batches taken until then
are marked with the rest.

So ended transactions need not be remembered: only those under way take memory. Joins hold for one
epoch of one leader; the next leader makes them again.
"""

from __future__ import annotations

from msgspec import Struct, field

Key = tuple[int, int]
"""(transaction, producer id)."""


class PendingJoin(Struct, frozen=True, eq=False):
    """A join that the transaction's record has not confirmed or refused yet.

    There may be several with the same key.
    """

    transaction: int
    producer_id: int


class _Joins(Struct):
    """The joins of one transaction: producer ids that have joined, and joins that are pending."""

    confirmed: set[int] = field(default_factory=set)
    pending: set[PendingJoin] = field(default_factory=set)


class Joins:
    """The joins of one partition, in its leader's present epoch."""

    def __init__(self) -> None:
        self._transactions: dict[int, _Joins] = {}

    def __len__(self) -> int:
        """Return how many joins are remembered."""
        return sum(len(each.confirmed) + len(each.pending) for each in self._transactions.values())

    def __contains__(self, key: Key) -> bool:
        """Return whether the join is confirmed: batches of it are taken."""
        found = self._transactions.get(key[0])
        return found is not None and key[1] in found.confirmed

    def open(self, transaction: int, producer_id: int) -> PendingJoin:
        """Note that a join is about to be recorded."""
        pending = PendingJoin(transaction, producer_id)
        self._transactions.setdefault(transaction, _Joins()).pending.add(pending)
        return pending

    def confirm(self, pending: PendingJoin) -> bool:
        """Confirm a recorded join; False if it was cancelled meanwhile, and must not be used."""
        found = self._transactions.get(pending.transaction)
        if found is None or pending not in found.pending:
            return False
        found.pending.discard(pending)
        found.confirmed.add(pending.producer_id)
        return True

    def give_up(self, pending: PendingJoin) -> None:
        """Give up a join that could not be recorded; an earlier confirmed one still holds."""
        found = self._transactions.get(pending.transaction)
        if found is not None:
            found.pending.discard(pending)
            self._tidy(pending.transaction)

    def seal(self, transaction: int) -> None:
        """Refuse all further batches of a decided transaction."""
        self._transactions.pop(transaction, None)

    def drop(self, transaction: int, producer_id: int) -> None:
        """Refuse all further batches of a branch that has ended."""
        found = self._transactions.get(transaction)
        if found is not None:
            found.confirmed.discard(producer_id)
            found.pending = {each for each in found.pending if each.producer_id != producer_id}
            self._tidy(transaction)

    def clear(self) -> None:
        """Drop all joins: those of an earlier epoch do not hold in a new one."""
        self._transactions.clear()

    def _tidy(self, transaction: int) -> None:
        found = self._transactions[transaction]
        if not found.confirmed and not found.pending:
            del self._transactions[transaction]
