"""A commit announces in its transaction's record which consumers' positions it will move.

A new owner of a consumer's name withdraws the announcement for that name, and a commit decides only
while its announcement is on record. ``scripts.consumers`` explains why two owners cannot both win.
"""

from __future__ import annotations

from collections.abc import Iterable

from spark_stream.consistency.transactions.transactions import (
    Event,
    Outcome,
    PositionOf,
    Transaction,
    entered,
    not_open,
    not_owner,
)


def announce(
    transaction: Transaction, instance: str, number: int, positions: Iterable[PositionOf]
) -> Outcome:
    """Record which positions the owner's commit is about to move."""
    denied = not_owner(transaction, instance) or not_open(transaction, number, Event.ANNOUNCE)
    return denied or entered(transaction, Event.ANNOUNCE, positions=tuple(positions))


def withdraw(transaction: Transaction, number: int, consumer: str) -> Outcome:
    """Withdraw a commit's announcement for a name that has a new owner: it must check again."""
    denied = not_open(transaction, number, Event.WITHDRAW)
    if denied is not None:
        return denied
    if all(each.consumer != consumer for each in transaction.positions):
        return transaction
    return entered(transaction, Event.WITHDRAW, positions=())
