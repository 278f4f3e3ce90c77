"""Transactions as records of the metadata store: every change is one compare-and-set.

``change`` reads a record, asks a rule for the next one, and writes it if nobody wrote meanwhile;
else it asks again with what is there now. So a rule may be asked more than once, and what was
written is what the rule said of the record that was there.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import fields
from typing import Any, Final

from spark_stream.cluster.consumers import decode_positions, encode_positions
from spark_stream.cluster.store import MetadataStore
from spark_stream.consistency.transactions import (
    Cause,
    Content,
    Denied,
    Joined,
    Outcome,
    State,
    Transaction,
)

PREFIX: Final = "transactions/"
_TUPLES: Final = ("fenced", "branches", "dropped", "taken")
_PLAIN: Final = tuple(
    field.name
    for field in fields(Transaction)
    if field.name not in (*_TUPLES, "state", "cause", "content", "partitions", "positions")
)


class TransactionRecords:
    """The transactions of a store."""

    def __init__(self, store: MetadataStore) -> None:
        self._store = store

    def get(self, transactional_id: str) -> Transaction | None:
        """The record, or None."""
        record = self._store.get(PREFIX + transactional_id)
        return None if record is None else decode(record.value)

    def all(self) -> list[Transaction]:
        """Every record, by transactional id."""
        return [decode(record.value) for record in self._store.list(PREFIX)]

    def change(self, transactional_id: str, rule: Callable[[Transaction], Outcome]) -> Outcome:
        """What the rule makes of the record, once that is what the store holds."""
        key = PREFIX + transactional_id
        while True:
            record = self._store.get(key)
            before = Transaction(transactional_id) if record is None else decode(record.value)
            after = rule(before)
            if isinstance(after, Denied) or after == before:
                return after
            version = 0 if record is None else record.version
            if self._store.put(key, encode(after), version) is not None:
                return after

    def forget(self, finished: Transaction) -> None:
        """Removes a record, if it is still this one."""
        record = self._store.get(PREFIX + finished.transactional_id)
        if record is not None and decode(record.value) == finished:
            self._store.delete(record.key, record.version)


def encode(transaction: Transaction) -> dict[str, Any]:
    """What the store holds of a transaction."""
    return {name: getattr(transaction, name) for name in _PLAIN} | {
        "state": transaction.state.value,
        "cause": transaction.cause.value,
        **{name: list(getattr(transaction, name)) for name in _TUPLES},
        "content": None
        if transaction.content is None
        else [[each.topic, each.rows, each.digest] for each in transaction.content],
        "partitions": [
            [each.topic, each.topic_id, each.partition] for each in transaction.partitions
        ],
        "positions": encode_positions(transaction.positions),
    }


def decode(value: Mapping[str, Any]) -> Transaction:
    """The transaction that a record's value holds."""
    # Records of earlier releases lack what came later.
    known: dict[str, Any] = {name: value[name] for name in _PLAIN if name in value}
    if "fresh" in value:
        known["unused"] = value["fresh"]  # as earlier releases call it
    known |= {name: tuple(value.get(name, ())) for name in _TUPLES}
    return Transaction(
        **known,
        state=State(value["state"]),
        cause=Cause(value["cause"]),
        content=None
        if value.get("content") is None
        else tuple(Content(*each) for each in value["content"]),
        partitions=tuple(Joined(*each) for each in value["partitions"]),
        positions=tuple(decode_positions(value["positions"])),
    )
