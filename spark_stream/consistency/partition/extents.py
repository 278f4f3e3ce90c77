"""The extents of a partition's transactions: which offsets each of them spans.

An extent is the first and the last offset of what one producer id wrote in one transaction. Aborted
records have none: nobody reads them. Extents are stored small and quick to search: recent ones in a
dict, older ones in blocks of arrays that never change, each at least twice as long as the next.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import cached_property
from typing import Final

import numpy as np
import numpy.typing as npt

from spark_stream.consistency.entries import Kind, Table, aborted_rows
from spark_stream.consistency.ids import NO_TRANSACTION

Offsets = npt.NDArray[np.int64]
Key = tuple[int, int]
"""(transaction, producer id)."""

_RECENT_MAX: Final = 4096  # at most this many are Python objects, and copied for a snapshot
_UNSETTLED_MAX: Final = 4096


class Block:
    """Extents in arrays, ordered by their first offsets; it never changes.

    One item for a (transaction, producer id), or several: each holds a part of its records.
    """

    def __init__(
        self, transactions: Offsets, producers: Offsets, firsts: Offsets, lasts: Offsets
    ) -> None:
        order = None if _rising(firsts) else np.argsort(firsts, kind="stable")
        columns = (transactions, producers, firsts, lasts)
        if order is not None:
            transactions, producers, firsts, lasts = (column[order] for column in columns)
        self.transactions = transactions
        self.producers = producers
        self.firsts = firsts
        self.lasts = lasts

    def __len__(self) -> int:
        return len(self.firsts)

    @cached_property
    def _reach(self) -> Offsets:
        """The greatest last offset up to each item."""
        return self.lasts if _rising(self.lasts) else np.maximum.accumulate(self.lasts)

    @cached_property
    def _opens(self) -> npt.NDArray[np.bool_]:
        """Which items overlap none before them: an atomic cut may be at their first offsets."""
        opens = np.ones(len(self), np.bool_)
        np.greater(self.firsts[1:], self._reach[:-1], out=opens[1:])
        return opens

    @cached_property
    def _by_transaction(self) -> tuple[Offsets, Offsets, Offsets]:
        """Each transaction once, rising, with its first and its last offset."""
        numbers = self.transactions
        if bool((numbers[1:] > numbers[:-1]).all()):
            return numbers, self.firsts, self.lasts
        order = np.argsort(numbers, kind="stable")
        numbers = numbers[order]
        starts = np.flatnonzero(np.concatenate(([True], numbers[1:] != numbers[:-1])))
        firsts = np.minimum.reduceat(self.firsts[order], starts)
        return numbers[starts], firsts, np.maximum.reduceat(self.lasts[order], starts)

    def below(self, offset: int) -> int:
        """Return how many items begin below the offset."""
        return int(np.searchsorted(self.firsts, offset, side="left"))

    def cluster(self, offset: int) -> int:
        """Return :meth:`below`, without the items connected to one that straddles the offset."""
        begun = self.below(offset)
        if begun == 0 or self._reach[begun - 1] < offset:
            return begun
        step = 64
        while True:  # backwards, in growing steps: mostly the start is near
            low = max(0, begun - step)
            found = np.flatnonzero(self._opens[low:begun])
            if len(found):
                return low + int(found[-1])
            step *= 8

    def cluster_end(self, begun: int) -> int:
        """Return the end of all items connected with the first ``begun`` ones (at least 1)."""
        step = 64
        while True:
            found = np.flatnonzero(self._opens[begun : begun + step])
            if len(found):
                return int(self._reach[begun + int(found[0]) - 1]) + 1
            if begun + step >= len(self):
                return int(self._reach[-1]) + 1
            step *= 8

    def extents(self, transactions: Offsets) -> tuple[Offsets, Offsets]:
        """Return the first and last offsets of the transactions that are here."""
        numbers, firsts, lasts = self._by_transaction
        place = np.minimum(np.searchsorted(numbers, transactions), len(numbers) - 1)
        place = place[numbers[place] == transactions]
        return firsts[place], lasts[place]

    def without(self, keys: set[Key]) -> Block:
        """Return the block without the items of these keys."""
        numbers = np.unique(np.fromiter((number for number, _ in keys), np.int64, len(keys)))
        known = self._by_transaction[0]
        place = np.minimum(np.searchsorted(known, numbers), len(known) - 1)
        numbers = numbers[known[place] == numbers]
        if not len(numbers):
            return self
        place = np.minimum(np.searchsorted(numbers, self.transactions), len(numbers) - 1)
        rows = np.flatnonzero(numbers[place] == self.transactions)
        pairs = zip(self.transactions[rows].tolist(), self.producers[rows].tolist(), strict=True)
        gone = np.fromiter((pair in keys for pair in pairs), np.bool_, len(rows))
        if not gone.any():
            return self
        kept = np.ones(len(self), np.bool_)
        kept[rows[gone]] = False
        return self._only(kept, self.firsts)

    def since(self, offset: int) -> Block:
        """Return the block without what lies below the offset."""
        if not len(self) or self.firsts[0] >= offset:
            return self
        return self._only(self.lasts >= offset, np.maximum(self.firsts, offset))

    def _only(self, kept: npt.NDArray[np.bool_], firsts: Offsets) -> Block:
        return Block(self.transactions[kept], self.producers[kept], firsts[kept], self.lasts[kept])


class SpansSnapshot:
    """The extents of one partition's transactions at one moment; any thread may use it."""

    def __init__(self, blocks: tuple[Block, ...], recent: dict[Key, tuple[int, int]]) -> None:
        self._blocks = blocks
        self._recent = recent

    @cached_property
    def blocks(self) -> tuple[Block, ...]:
        """All extents, in blocks that are not empty."""
        return (*self._blocks, block_of(self._recent)) if self._recent else self._blocks


class Spans:
    """First and last offset of each transaction's records in one partition, aborted ones left out.

    Call it under the partition's lock. It takes 32 bytes for each producer id of a transaction, and
    up to 40 more while cuts are computed where transactions overlap.
    """

    def __init__(self, block: Block | None = None) -> None:
        self._blocks = [block] if block is not None and len(block) else []
        self._recent: dict[Key, tuple[int, int]] = {}
        self._aborted: set[Key] = set()  # not yet taken from the blocks
        self._start = 0

    @classmethod
    def derived(cls, tables: Sequence[Table]) -> Spans:
        """Derive the spans from the entries tables of a whole log, oldest first."""
        parts: list[tuple[np.ndarray, ...]] = []
        for table, aborted in zip(tables, aborted_rows(tables), strict=True):
            held = (table["transaction"] != NO_TRANSACTION) & (table["kind"] == Kind.DATA)
            if aborted is not None:
                held &= ~aborted
            rows = np.flatnonzero(held)
            base = table["base_offset"][rows]
            last = base + table["count"][rows].astype(np.int64) - 1
            parts.append((table["transaction"][rows], table["producer_id"][rows], base, last))
        if not sum(len(part[0]) for part in parts):
            return cls()
        number, producer, first, last = (
            np.concatenate(column) for column in zip(*parts, strict=True)
        )
        if not bool((number[1:] > number[:-1]).all()):
            order = np.lexsort((producer, number))  # stable: offsets rise within a key
            number, producer = number[order], producer[order]
            other = (number[1:] != number[:-1]) | (producer[1:] != producer[:-1])
            starts = np.flatnonzero(np.concatenate(([True], other)))
            ends = np.append(starts[1:], len(number)) - 1
            number, producer = number[starts], producer[starts]
            first, last = first[order][starts], last[order][ends]
        return cls(Block(number, producer, first, last))

    def on_appended(self, transaction: int, producer_id: int, first: int, last: int) -> None:
        """Record that the producer id wrote these offsets (inclusive) in the transaction."""
        key = (transaction, producer_id)
        known = self._recent.get(key)
        self._recent[key] = (first if known is None else known[0], last)
        if len(self._recent) > _RECENT_MAX:
            self._settle()
            self._blocks.append(block_of(self._recent))
            self._recent = {}
            while len(self._blocks) > 1 and len(self._blocks[-2]) <= 2 * len(self._blocks[-1]):
                self._blocks[-2:] = [_merged(*self._blocks[-2:])]

    def on_aborted(self, transaction: int, producer_id: int) -> None:
        """Record that the producer id's part of the transaction is aborted."""
        key = (transaction, producer_id)
        self._recent.pop(key, None)
        if self._blocks:
            self._aborted.add(key)
            if len(self._aborted) > _UNSETTLED_MAX:
                self._settle()

    def on_evicted(self, before: int) -> None:
        """Forget what lies below ``before``, the log's new start."""
        if before <= self._start:
            return
        self._start = before
        self._keep([block.since(before) for block in self._blocks])
        self._recent = {
            key: (max(first, before), last)
            for key, (first, last) in self._recent.items()
            if last >= before
        }

    def snapshot(self) -> SpansSnapshot:
        """Return a copy of the present state; working on it needs no lock."""
        self._settle()
        return SpansSnapshot(tuple(self._blocks), self._recent.copy())

    def _settle(self) -> None:
        if self._aborted:
            self._keep([block.without(self._aborted) for block in self._blocks])
            self._aborted = set()

    def _keep(self, blocks: Iterable[Block]) -> None:
        self._blocks = [block for block in blocks if len(block)]


def _rising(values: Offsets) -> bool:
    return bool((values[1:] >= values[:-1]).all())


def block_of(extents: dict[Key, tuple[int, int]]) -> Block:
    keys = np.array(list(extents), np.int64).reshape(-1, 2)
    values = np.array(list(extents.values()), np.int64).reshape(-1, 2)
    columns = (*keys.T, *values.T)
    return Block(*(np.ascontiguousarray(column) for column in columns))


def _merged(one: Block, other: Block) -> Block:
    names = ("transactions", "producers", "firsts", "lasts")
    return Block(*(np.concatenate((getattr(one, name), getattr(other, name))) for name in names))
