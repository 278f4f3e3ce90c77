"""Transactions as records of the metadata store: every change is one compare-and-set.

``change`` reads a record, asks a rule for the next one, and writes it if nobody wrote meanwhile;
else it asks again with what is there now. So a rule may be asked more than once, and what was
written is what the rule said of the record that was there.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, fields
from types import MappingProxyType
from typing import Any, Final

from spark_stream.cluster.store import MetadataStore
from spark_stream.consistency.transactions import (
    Cause,
    Content,
    Denied,
    Joined,
    Outcome,
    PositionOf,
    State,
    Transaction,
)
from spark_stream.errors import ConsumerFenced

PREFIX: Final = "transactions/"
CONSUMERS: Final = "consumers/"
STOPPED: Final = "stopped/"
STOPPED_KEPT_MS: Final = 24 * 3_600_000
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


class StoppedRuns:
    """The latest plan that each driver has given up, for as long as a task of it may still come."""

    def __init__(self, store: MetadataStore) -> None:
        self._store = store

    def planned(self, run: str) -> int:
        """What the run planned until then is given up; -1: nothing is."""
        record = self._store.get(STOPPED + run)
        return -1 if record is None else int(record.value["planned"])

    def stop(self, run: str, planned: int, now_ms: int) -> None:
        """Remembers it, and forgets what is so old that nobody asks any more."""
        for old in self._store.list(STOPPED):
            if now_ms - int(old.value["at_ms"]) > STOPPED_KEPT_MS:
                self._store.delete(old.key, old.version)
        while planned > self.planned(run):
            record = self._store.get(STOPPED + run)
            version = 0 if record is None else record.version
            self._store.put(STOPPED + run, {"planned": planned, "at_ms": now_ms}, version)


class ConsumerRecords:
    """Where named consumers go on."""

    def __init__(self, store: MetadataStore) -> None:
        self._store = store

    def get(self, consumer: str) -> list[PositionOf]:
        """The positions, by topic and partition; empty if none was ever stored."""
        record = self._store.get(CONSUMERS + consumer)
        return [] if record is None else decode_positions(record.value["positions"])

    def take(self, consumer: str, instance: str) -> None:
        """The instance owns the name from now on; whoever owned it is fenced."""
        self._change(consumer, lambda value: {**value, "instance": instance})

    def check(self, owners: Mapping[str, str]) -> None:
        """ConsumerFenced if a name is owned by another instance than this one."""
        for name, instance in owners.items():
            record = self._store.get(CONSUMERS + name)
            _check_owner(name, {} if record is None else record.value, instance)

    def store(
        self,
        positions: list[PositionOf],
        still: Callable[[], bool] = lambda: True,
        owners: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        """Puts the positions in the place of the earlier ones, unless ``still`` turns false.

        ``still`` is asked after a record was read and before it is written, so that whoever is late
        (another has finished the transaction, and a later one has moved on) changes nothing.

        Raises:
            ConsumerFenced: a name has another owner than ``owners`` says.
        """
        for name in sorted({each.consumer for each in positions}):
            mine = [each for each in positions if each.consumer == name]

            def moved(
                value: Mapping[str, Any],
                name: str = name,
                mine: list[PositionOf] = mine,
            ) -> Mapping[str, Any] | None:
                if not still():
                    return None
                if name in owners:
                    _check_owner(name, value, owners[name])
                known = decode_positions(value["positions"])
                merged = {(each.topic, each.partition): each for each in (*known, *mine)}
                return {**value, "positions": [asdict(merged[place]) for place in sorted(merged)]}

            if not self._change(name, moved):
                return

    def _change(
        self, name: str, rule: Callable[[Mapping[str, Any]], Mapping[str, Any] | None]
    ) -> bool:
        """One compare-and-set of what the rule makes of the record; False if it makes nothing."""
        while True:
            record = self._store.get(CONSUMERS + name)
            value = rule({"positions": []} if record is None else record.value)
            if value is None:
                return False
            version = 0 if record is None else record.version
            if self._store.put(CONSUMERS + name, value, version) is not None:
                return True


def _check_owner(name: str, value: Mapping[str, Any], instance: str) -> None:
    if value.get("instance") != instance:
        raise ConsumerFenced(f"another consumer has taken over the name {name!r}", consumer=name)


def encode(transaction: Transaction) -> dict[str, Any]:
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
        "positions": [asdict(each) for each in transaction.positions],
    }


def decode(value: Mapping[str, Any]) -> Transaction:
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


def decode_positions(values: list[dict[str, Any]]) -> list[PositionOf]:
    return [PositionOf(**each) for each in values]
