"""The records of transactions: every change of one is a read, a judgement and a compare-and-set.

Anything may happen between the read and the write; if somebody wrote meanwhile, the record is
judged again as it is now. So a judgement may be asked more than once, and what was written is what
it said of the record that was there.
"""

from __future__ import annotations

from collections.abc import Callable

from spark_stream.cluster.transactions import PREFIX, decode, encode
from spark_stream.consistency.transactions import Denied, Outcome, Transaction
from spark_stream.scripts.steps import Script, delete, get, list_records, put

Rule = Callable[[Transaction], Outcome]
Judge = Callable[[Transaction], Script[Outcome]]
"""As a rule, but it may take steps before it says what becomes of the record."""


def read(transactional_id: str) -> Script[Transaction | None]:
    """The record, or None."""
    record = yield from get(PREFIX + transactional_id)
    return None if record is None else decode(record.value)


def read_all() -> Script[list[Transaction]]:
    """Every record, by transactional id."""
    return [decode(record.value) for record in (yield from list_records(PREFIX))]


def change(transactional_id: str, judge: Judge) -> Script[Outcome]:
    """Writes what the judge makes of the record, and returns it; or why that was denied."""
    key = PREFIX + transactional_id
    while True:
        record = yield from get(key)
        before = Transaction(transactional_id) if record is None else decode(record.value)
        after = yield from judge(before)
        if isinstance(after, Denied) or after == before:
            return after
        if (yield from put(key, encode(after), 0 if record is None else record.version)):
            return after


def ruled(rule: Rule) -> Judge:
    """A judge that needs no step."""

    def judge(found: Transaction) -> Script[Outcome]:
        yield from ()
        return rule(found)

    return judge


def forget(finished: Transaction) -> Script[None]:
    """Removes a record, if it is still this one."""
    record = yield from get(PREFIX + finished.transactional_id)
    if record is not None and decode(record.value) == finished:
        yield from delete(record.key, record.version)
