"""Transactions as records of the metadata store: their keys, and what a record holds.

A transaction has one record, and one more for each partition that has joined it: what a join writes
does not grow with the joins before it. ``scripts/records`` changes them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import astuple, dataclass, fields
from typing import Any, Final

from spark_stream.cluster.consumers import decode_positions, encode_positions
from spark_stream.cluster.store import Put, Record
from spark_stream.consistency.transactions import (
    Cause,
    Content,
    Joined,
    State,
    Transaction,
)

PREFIX: Final = "transactions/"
JOINS: Final = "joins/"
_TUPLES: Final = ("fenced", "branches", "dropped", "taken")
_PLAIN: Final = tuple(
    field.name
    for field in fields(Transaction)
    if field.name not in (*_TUPLES, "state", "cause", "content", "positions")
)


@dataclass(frozen=True, slots=True)
class Join:
    """A partition that has joined a transaction."""

    transactional_id: str
    number: int
    at: Joined


def encode(transaction: Transaction) -> dict[str, Any]:
    """What the store holds of a transaction."""
    return {name: getattr(transaction, name) for name in _PLAIN} | {
        "state": transaction.state.value,
        "cause": transaction.cause.value,
        **{name: list(getattr(transaction, name)) for name in _TUPLES},
        "content": None
        if transaction.content is None
        else [list(astuple(each)) for each in transaction.content],
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
        positions=tuple(decode_positions(value["positions"])),
    )


def joins_of(number: int) -> str:
    """The prefix of the keys of all joins of a transaction."""
    return f"{JOINS}{number}/"


def join_of(transactional_id: str, number: int, at: Joined) -> Put:
    """The record that says that a partition has joined a transaction; there may be one already."""
    value = {"transactional_id": transactional_id, "topic": at.topic}
    return Put(f"{joins_of(number)}{at.topic_id}/{at.partition}", value, 0)


def decode_join(record: Record) -> Join:
    """The join that a record stands for."""
    number, topic_id, partition = record.key.removeprefix(JOINS).split("/")
    at = Joined(str(record.value["topic"]), topic_id, int(partition))
    return Join(str(record.value["transactional_id"]), int(number), at)
