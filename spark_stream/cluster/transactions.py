"""Transactions as records of the metadata store, and unique numbers for transactions and producers.

A transaction has one record, and one more for each partition that has joined it, so a join's write
does not grow with the joins before it. The record of a sink whose id expired is moved to a separate
prefix, by query. ``scripts.transactions.records`` changes them.

**Numbers.** A broker takes a block of numbers by one compare-and-set and allots them from memory,
so most cost no write. The rest of a block is lost when the broker ends, so numbers have gaps. Each
broker allots rising numbers, but from a separate block: a number may be below an earlier one of
another broker. A caller that needs a number above an earlier one passes the earlier one.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from enum import StrEnum
from typing import Any, Final

import msgspec
from msgspec import Struct

from spark_stream.cluster.stores.store import MetadataStore, Put, StoreRecord
from spark_stream.consistency.transactions.transactions import (
    DECIDED,
    Joined,
    State,
    Transaction,
)
from spark_stream.structs import learn_types

PREFIX: Final = "transactions/"
JOINS: Final = "joins/"
EXPIRED: Final = "expired/"


class TransactionKey(StrEnum):
    """The kinds of keys by which records of transactions are found."""

    QUERY = "query"
    RUN = "run"
    CONSUMER = "consumer"
    """The consumer of positions that the record has until the transaction is finished."""
    UNDER_WAY = "under way"
    """Open, or decided and not finished on record."""
    ANY = "any"


FoundBy = tuple[TransactionKey, str]


class Join(Struct, frozen=True):
    """A partition that has joined a transaction."""

    transactional_id: str
    number: int
    at: Joined


def encode(transaction: Transaction) -> dict[str, Any]:
    """Encode a transaction for the store."""
    value: dict[str, Any] = msgspec.to_builtins(transaction)
    return value


def decode(value: Mapping[str, Any]) -> Transaction:
    """Decode the transaction in a record's value."""
    return msgspec.convert(value, Transaction)


def expired_of(query: str) -> str:
    """Return the prefix of the keys of a query's commits under ids that expired.

    Keys of queries whose names begin with this one and a slash have the same prefix.
    """
    return f"{EXPIRED}{query}/"


def joins_of(number: int) -> str:
    """Return the prefix of the keys of all joins of a transaction."""
    return f"{JOINS}{number}/"


def join_of(transactional_id: str, number: int, at: Joined) -> Put:
    """Build the record that a partition has joined a transaction. It may exist already."""
    value = {"transactional_id": transactional_id, "topic": at.topic}
    return Put(f"{joins_of(number)}{at.topic_id}/{at.partition}", value, 0)


def decode_join(record: StoreRecord) -> Join:
    """Decode the join in a record."""
    number, topic_id, partition = record.key.removeprefix(JOINS).split("/")
    at = Joined(str(record.value["topic"]), topic_id, int(partition))
    return Join(str(record.value["transactional_id"]), int(number), at)


def keys_of(transaction: Transaction) -> set[FoundBy]:
    """Return the index keys of a record: its query, run and consumers, and its being under way."""
    keys = {(TransactionKey.CONSUMER, each.consumer) for each in transaction.positions}
    keys.add((TransactionKey.ANY, ""))
    if transaction.query:
        keys.add((TransactionKey.QUERY, transaction.query))
    if transaction.run:
        keys.add((TransactionKey.RUN, transaction.run))
    if transaction.state is State.OPEN or transaction.state in DECIDED:
        keys.add((TransactionKey.UNDER_WAY, ""))
    return keys


class TransactionIndex:
    """All records of transactions in memory, with an index of their contents.

    It follows the store's changes. So the cost of a look-up depends on the changes since the last
    one and on its result, not on the number of all records. Any thread may call it.
    """

    def __init__(self, store: MetadataStore) -> None:
        self._store = store
        self._lock = threading.Lock()
        self._revision = 0
        self._records: dict[str, Transaction] = {}
        self._names: dict[FoundBy, set[str]] = {}

    def find(self, by: TransactionKey, value: str, *, fresh: bool = True) -> list[Transaction]:
        """Return the records with this value, ordered by id, as they are in the store now.

        Without ``fresh``: as they were a moment ago.
        """
        with self._lock:
            changes = self._store.changes(self._revision, (PREFIX,), fresh=fresh)
            for key, record in changes.since(self._records).items():
                self._take(key, record)
            self._revision = changes.revision
            return [self._records[key] for key in sorted(self._names.get((by, value), ()))]

    def _take(self, key: str, record: StoreRecord | None) -> None:
        before = self._records.pop(key, None)
        for each in set() if before is None else keys_of(before):
            names = self._names[each]
            names.discard(key)
            if not names:
                del self._names[each]
        if record is not None:
            after = self._records[key] = decode(record.value)
            for each in keys_of(after):
                self._names.setdefault(each, set()).add(key)


BLOCK: Final = 1_000
NUMBERS: Final = "numbers/"
"""The prefix of all counters' keys, by which a restore finds them."""


class Numbers:
    """Rising numbers from 0, under one key of the store. From any thread."""

    def __init__(
        self,
        store: MetadataStore,
        key: str,
        block: int = BLOCK,
        used: Callable[[], int] = lambda: -1,
    ) -> None:
        """Take no block yet. ``used`` returns the greatest number that is in use here, or -1."""
        self._store = store
        self._used = used
        self._key = key
        self._block = block
        self._lock = threading.Lock()
        self._next = 0
        self._end = 0

    def take(self, above: int = -1) -> int:
        """Return a number above ``above`` that no broker returns again.

        Numbers up to ``above`` that are left in this broker's block are dropped.
        """
        with self._lock:
            self._next = max(self._next, above + 1)
            if self._next >= self._end:
                # The stored counter may be older than the logs.
                self._next = self._take_block(max(self._next, self._used() + 1))
                self._end = self._next + self._block
            number = self._next
            self._next += 1
            return number

    def pass_over(self, used: int) -> bool:
        """Skip all numbers up to ``used``. Return True if the stored counter was behind."""
        with self._lock:
            while True:
                record = self._store.get(self._key)
                if used < (0 if record is None else int(record.value["next"])):
                    return False
                version = 0 if record is None else record.version
                if self._store.put(self._key, {"next": used + 1}, version) is not None:
                    self._next = self._end = 0
                    return True

    def _take_block(self, least: int) -> int:
        """Reserve a block that begins at ``least`` or above, and return its first number."""
        while True:
            record = self._store.get(self._key)
            start = max(least, 0 if record is None else int(record.value["next"]))
            version = 0 if record is None else record.version
            if self._store.put(self._key, {"next": start + self._block}, version) is not None:
                return start


learn_types(Transaction)
