"""Transactions as records of the metadata store: their key, and what a record holds.

``scripts/records`` changes them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import astuple, fields
from typing import Any, Final

from spark_stream.cluster.consumers import decode_positions, encode_positions
from spark_stream.consistency.transactions import (
    Cause,
    Content,
    Joined,
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


def encode(transaction: Transaction) -> dict[str, Any]:
    """What the store holds of a transaction."""
    return {name: getattr(transaction, name) for name in _PLAIN} | {
        "state": transaction.state.value,
        "cause": transaction.cause.value,
        **{name: list(getattr(transaction, name)) for name in _TUPLES},
        "content": None
        if transaction.content is None
        else [list(astuple(each)) for each in transaction.content],
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
