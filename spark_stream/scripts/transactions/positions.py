"""The records of named consumers: where each goes on, and which instance owns its name."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from spark_stream.cluster.consumers import CONSUMERS, decode_positions, encode_positions
from spark_stream.consistency.transactions.transactions import PositionOf, State, Transaction
from spark_stream.errors import ConsumerFenced
from spark_stream.scripts.steps import Get, PutRecord, Script
from spark_stream.scripts.transactions import records

Value = Mapping[str, Any]


def read_positions(consumer: str) -> Script[list[PositionOf]]:
    """Return the positions, by topic and partition; empty if none was ever stored."""
    record = yield from Get(CONSUMERS + consumer)
    return [] if record is None else decode_positions(record.value["positions"])


def own_name(consumer: str, instance: str, principal: str = "") -> Script[None]:
    """Give the principal's instance the name, and fence its earlier owner."""
    owner = {"instance": instance, "principal": principal}
    yield from _change(consumer, lambda value: _constant({**value, **owner}))


def check_owners(owners: Mapping[str, str]) -> Script[None]:
    """Raise ConsumerFenced if a name has another owner than ``owners`` says."""
    for name, instance in owners.items():
        record = yield from Get(CONSUMERS + name)
        _check_owner(name, {} if record is None else record.value, instance)


def store_positions(positions: Sequence[PositionOf], owners: Mapping[str, str]) -> Script[None]:
    """Replace the stored positions, outside of any transaction.

    Raises:
        ConsumerFenced: a name has another owner than ``owners`` says.
    """
    for name, mine in _by_consumer(positions).items():
        yield from _store_for(name, mine, owners)


def _store_for(name: str, mine: list[PositionOf], owners: Mapping[str, str]) -> Script[None]:
    def merge(value: Value) -> Value:
        if name in owners:
            _check_owner(name, value, owners[name])
        return _merged(value, mine)

    yield from _change(name, lambda value: _constant(merge(value)))


def store_decided(decided: Transaction) -> Script[None]:
    """Replace the stored positions by those of a committed transaction.

    A late caller changes nothing. The transaction's record is read after the consumer's record and
    before the write. If somebody else has finished the transaction by then, its record says so. If
    somebody finishes it after that, and a later transaction moves the position, then the consumer's
    record has changed, and the write fails.
    """

    for name, mine in _by_consumer(decided.positions).items():
        yield from _store_decided_for(name, mine, decided)


def _store_decided_for(name: str, mine: list[PositionOf], decided: Transaction) -> Script[None]:
    def merge(value: Value) -> Script[Value | None]:
        found = yield from records.read(decided.transactional_id)
        here = (decided.number, State.COMMITTING)
        if found is None or (found.number, found.state) != here:
            return None
        return _merged(value, mine)

    yield from _change(name, merge)


def _change(name: str, judge: Callable[[Value], Script[Value | None]]) -> Script[None]:
    """Replace the record by the judge's result, by compare-and-set; None changes nothing."""
    while True:
        record = yield from Get(CONSUMERS + name)
        value = yield from judge({"positions": []} if record is None else record.value)
        if value is None:
            return
        if (yield from PutRecord(CONSUMERS + name, value, 0 if record is None else record.version)):
            return


def _constant(value: Value) -> Script[Value | None]:
    yield from ()
    return value


def _by_consumer(positions: Sequence[PositionOf]) -> dict[str, list[PositionOf]]:
    names = sorted({each.consumer for each in positions})
    return {name: [each for each in positions if each.consumer == name] for name in names}


def _merged(value: Value, mine: Sequence[PositionOf]) -> Value:
    known = decode_positions(value["positions"])
    merged = {(each.topic, each.partition): each for each in (*known, *mine)}
    return {**value, "positions": encode_positions(merged[place] for place in sorted(merged))}


def _check_owner(name: str, value: Value, instance: str) -> None:
    if value.get("instance") != instance:
        raise ConsumerFenced(f"another consumer has taken over the name {name!r}", consumer=name)
