"""The records of transactions: every change of one is a read, a judgement and a compare-and-set.

Anything may happen between the read and the write. If the record changed between them, it is read
and judged again. So a judge may run more than once, and the written record is its judgement of the
record that the write replaces. Only the first join of a reserved number is written in another way:
with the joins (:func:`record_joins`).

The partitions of a transaction are separate records, which are put and deleted, and never changed.
The record of a sink whose id expired is moved to another key.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from typing import Concatenate, Final, ParamSpec

from msgspec.structs import replace

from spark_stream.cluster.stores.store import Delete, Put, StoreRecord
from spark_stream.cluster.transactions import (
    EXPIRED,
    JOINS,
    PREFIX,
    Join,
    TransactionKey,
    decode,
    decode_join,
    encode,
    expired_of,
    join_of,
    joins_of,
)
from spark_stream.consistency.transactions.transactions import (
    DECIDED,
    Joined,
    Outcome,
    State,
    Transaction,
)
from spark_stream.errors import IsologError, PermissionDenied
from spark_stream.scripts.steps import (
    CatchUp,
    DeleteMany,
    DeleteRecord,
    FindTransactions,
    Get,
    ListRecords,
    PutMany,
    PutRecord,
    Refresh,
    Script,
)

_LISTED_ALONE: Final = 10  # above this number of ended transactions, one request lists all joins

P = ParamSpec("P")
Rule = Callable[Concatenate[Transaction, P], Outcome]
"""A rule of ``consistency.transactions``: it takes a transaction, and further arguments."""
Judge = Callable[[Transaction], Script[Outcome]]
"""Like a rule, but it may take steps before it returns the outcome."""


def read(transactional_id: str, *, fresh: bool = True) -> Script[Transaction | None]:
    """Return the record of this id, or None if there is none.

    Without ``fresh``: as it was a moment ago.
    """
    record = yield from Get(PREFIX + transactional_id, fresh)
    return None if record is None else decode(record.value)


def read_version(transactional_id: str, *, fresh: bool = True) -> Script[tuple[Transaction, int]]:
    """Return the record of this id with its version, or an empty one with version 0.

    ``fresh``: as :func:`read`.
    """
    record = yield from Get(PREFIX + transactional_id, fresh)
    if record is None:
        return Transaction(transactional_id), 0
    return decode(record.value), record.version


def put_of(after: Transaction, version: int) -> Put:
    """Return the write of this record in place of the one with this version."""
    return Put(PREFIX + after.transactional_id, encode(after), version)


def read_all() -> Script[list[Transaction]]:
    """Return every record, by transactional id."""
    return [decode(record.value) for record in (yield from ListRecords(PREFIX))]


def read_numbered(numbers: Collection[int]) -> Script[list[Transaction]]:
    """Return the transactions of these numbers, as they were a moment ago."""
    found = yield from FindTransactions(TransactionKey.ANY, fresh=False)
    return [each for each in found if each.number in numbers]


def change(transactional_id: str, judge: Judge) -> Script[Outcome]:
    """Apply the judge to the record. Return the result, or the denial.

    A cached record is judged first: if it is out of date, the compare-and-set fails. If the judge
    would write nothing, or fails, the record is read afresh, and judged again if it has changed.
    """
    key = PREFIX + transactional_id
    fresh, judged = False, -1
    after: Outcome | IsologError
    while True:
        before, version = yield from read_version(transactional_id, fresh=fresh)
        if version != judged:
            judged = version
            try:
                after = yield from judge(before)
            except IsologError as error:
                after = error
        if isinstance(after, Transaction) and after != before:
            if (yield from PutRecord(key, encode(after), version)):
                return after
            judged = -1
        elif fresh:
            if isinstance(after, IsologError):
                raise after
            return after
        fresh = True


def as_judge(rule: Rule[P], *args: P.args, **kwargs: P.kwargs) -> Judge:
    """Return a judge that applies the rule with these arguments, without any step."""

    def judge(found: Transaction) -> Script[Outcome]:
        yield from ()
        return rule(found, *args, **kwargs)

    return judge


def claim(transactional_id: str, principal: str, *, may_take: bool = False) -> Script[None]:
    """Record the principal as the owner of the id, if the id has none.

    ``may_take``: from another principal, too.

    Raises:
        PermissionDenied: The id belongs to another principal.
    """

    def rule(found: Transaction) -> Outcome:
        if not (may_take or is_of(found, principal)):
            raise _belongs_to_another(transactional_id)
        return replace(found, principal=principal)

    yield from change(transactional_id, as_judge(rule))


def check_id_owner(transactional_id: str, principal: str, instance: str = "") -> Script[None]:
    """Check that the id is the principal's, or has no owner yet.

    A fenced instance may call too: it can change nothing, and its error gives the reason.

    Raises:
        PermissionDenied: The id belongs to another principal.
    """
    found = yield from read(transactional_id)
    if found is not None and not is_of(found, principal) and instance not in found.fenced:
        raise _belongs_to_another(transactional_id)


def _belongs_to_another(transactional_id: str) -> PermissionDenied:
    return PermissionDenied(
        f"the transactional id {transactional_id!r} belongs to another principal",
        hint="Use another id, or ask an administrator to take this one over.",
        resource=f"transaction:{transactional_id}",
    )


def is_of(transaction: Transaction, principal: str) -> bool:
    """Return whether the transaction's id is the principal's, or has no owner yet."""
    return transaction.principal in ("", principal)


def delete_unchanged(finished: Transaction) -> Script[bool]:
    """Delete the record if it is unchanged. Return whether it was deleted."""
    record = yield from Get(PREFIX + finished.transactional_id)
    if record is None or decode(record.value) != finished:
        return False
    return (yield from DeleteRecord(record.key, record.version))


# -- sinks whose ids expired ----------------------------------------------------------------------


def expire_sink(idle: Transaction) -> Script[None]:
    """Move the record of an idle sink to a key that only its query reads.

    Order of steps: the copy is put, then the record is deleted if it is still the same. A reader
    that finds no record finds the copy. If the record has changed, it still has all facts of the
    copy, and the query's next run deletes the copy.
    """
    record = yield from Get(PREFIX + idle.transactional_id)
    if record is None or decode(record.value) != idle:
        return
    key = expired_of(idle.query) + idle.transactional_id
    before = yield from Get(key)
    if (yield from PutRecord(key, record.value, 0 if before is None else before.version)):
        yield from DeleteRecord(record.key, record.version)


def read_expired(query: str | None = None) -> Script[list[tuple[StoreRecord, Transaction]]]:
    """Return the store's records of expired ids (of one query or all), and their transactions."""
    prefix = EXPIRED if query is None else expired_of(query)
    found = [(each, decode(each.value)) for each in (yield from ListRecords(prefix))]
    return [each for each in found if query in (None, each[1].query)]


def delete_expired(gone: Iterable[tuple[StoreRecord, Transaction]]) -> Script[None]:
    """Delete those of these records of expired ids that are still the same."""
    deletes = [Delete(record.key, record.version) for record, _ in gone]
    if deletes:
        yield from DeleteMany(deletes)


# -- the partitions of a transaction --------------------------------------------------------------


def record_joins(
    transactional_id: str, number: int, places: Iterable[Joined], begin: Put | None = None
) -> Script[tuple[bool, bool]]:
    """Record in one write that the partitions have joined.

    ``begin``: the write that also begins the transaction, after the joins. Return whether all joins
    are new on record, and whether the transaction has begun.
    """
    puts = [join_of(transactional_id, number, at) for at in places]
    versions = yield from PutMany(puts if begin is None else [*puts, begin])
    recorded = None not in versions[: len(puts)]
    return recorded, begin is not None and versions[-1] is not None


def read_places(number: int, *, decided: bool = False) -> Script[tuple[Joined, ...]]:
    """Return the partitions that have joined the transaction of this number.

    The broker has then seen all that was on record when it was called, with the leaders.
    ``decided``: the caller has seen the decision, and the joins on record at that time are
    enough.
    """
    yield CatchUp() if decided else Refresh()
    found = yield from ListRecords(joins_of(number), fresh=False)
    return tuple(decode_join(each).at for each in found)


def read_joins() -> Script[list[Join]]:
    """Return all joins of all transactions."""
    return [decode_join(each) for each in (yield from ListRecords(JOINS))]


def delete_joins(ended: Iterable[tuple[int, str]]) -> Script[list[tuple[int, str]]]:
    """Remove the joins of transactions (number and id) that are finished on record.

    Return the transactions that are decided but not finished: their joins are still needed. Also
    return reserved numbers, whose transaction may be about to begin. Joins of open transactions
    stay too: these are finished later.

    A record is read once for all transactions of its id. The joins of more than ten transactions
    are found with one request, which lists those of the whole cluster.
    """
    records: dict[str, Transaction | None] = {}
    pending: list[tuple[int, str]] = []
    finished: set[int] = set()
    for number, transactional_id in ended:
        if transactional_id not in records:
            records[transactional_id] = yield from read(transactional_id)
        found = records[transactional_id]
        is_present = found is not None and found.number == number
        if found is not None and (
            found.reserved == number or (is_present and found.state in DECIDED)
        ):
            pending.append((number, transactional_id))
        elif found is None or not is_present or found.state is not State.OPEN:
            finished.add(number)
    joins: list[StoreRecord] = []
    if len(finished) > _LISTED_ALONE:
        joins += yield from ListRecords(JOINS)
    else:
        for number in sorted(finished):
            joins += yield from ListRecords(joins_of(number))
    gone = [
        Delete(each.key, each.version) for each in joins if decode_join(each).number in finished
    ]
    if gone:
        yield from DeleteMany(gone)
    return pending
