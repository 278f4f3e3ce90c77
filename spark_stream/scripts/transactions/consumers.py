"""Named consumers: a newer instance takes a name over and goes on where the older one was.

**A commit moves a position for the name's owner only, or not at all**, although the owner's name
and the transaction are two records that no single compare-and-set covers, and although two brokers
may handle the calls. The steps, in these orders:

* a commit (``deciding.commit``) **announces** in its open transaction which positions it moves,
  then **checks** who owns the names, then **decides**, if the record is still the one that has the
  announcement;
* a new owner **takes** the name, then **looks** for transactions with that name: it **withdraws**
  an announcement (the commit's decision then fails, and the commit begins again), and finishes a
  decided transaction; then it **reads** the position.

If the name is taken before the check, the check finds the new owner and the commit is refused. If
not, the order is announce, check, take, look: the new owner sees the announcement or its outcome.
Withdrawing and deciding are compare-and-sets on one record: if the withdrawal wins, the commit
announces and checks once more, and is refused; if the decision wins, the new owner finishes the
transaction, positions and all, before it reads. So a position that the new owner has read moves for
nobody else afterwards.
"""

from __future__ import annotations

from collections.abc import Callable

from spark_stream.cluster.transactions import By
from spark_stream.consistency.transactions.events import withdraw
from spark_stream.consistency.transactions.transactions import PositionOf, State
from spark_stream.scripts.readers import end_fenced
from spark_stream.scripts.steps import FindTransactions, Script
from spark_stream.scripts.transactions import records
from spark_stream.scripts.transactions.finishing import Finisher
from spark_stream.scripts.transactions.positions import own_name, read_positions


class Consumers:
    """Named consumers, at one broker."""

    def __init__(self, finisher: Finisher) -> None:
        self._finisher = finisher

    def take(
        self,
        consumer: str,
        instance: str,
        principal: str = "",
        *,
        keeps_group: bool = False,
    ) -> Script[list[PositionOf]]:
        """Give the principal's instance the consumer's name. Return its stored positions.

        ``keeps_group``: for a reset. The name stays that of its group, and the earlier owner's
        session ends: the new owner reads nothing.
        """
        yield from own_name(consumer, instance, principal, keeps_group=keeps_group)
        if keeps_group:
            yield from end_fenced("client", consumer, instance)
        return (yield from self.take_over(consumer, lambda position: True))

    def take_over(
        self, consumer: str, concerns: Callable[[PositionOf], bool]
    ) -> Script[list[PositionOf]]:
        """Return where a new owner continues.

        ``concerns``: whether a position is the new owner's from now on. Transactions that are about
        to move one must check again who owns it.
        """
        for record in (yield from FindTransactions(By.CONSUMER, consumer)):
            if record.state is State.OPEN and any(map(concerns, record.positions)):
                yield from withdraw_announcement(record.transactional_id, record.number, consumer)
        return (yield from self.go_on(consumer))

    def go_on(self, consumer: str) -> Script[list[PositionOf]]:
        """Return where a named consumer goes on, after finishing its decided transactions."""
        for record in (yield from FindTransactions(By.CONSUMER, consumer)):
            if record.state is State.COMMITTING:
                yield from self._finisher.finish(record)
        return (yield from read_positions(consumer))


def withdraw_announcement(transactional_id: str, number: int, consumer: str) -> Script[None]:
    """Make an undecided commit check again which instance owns the name."""
    yield from records.change(
        transactional_id, records.as_judge(lambda found: withdraw(found, number, consumer))
    )
