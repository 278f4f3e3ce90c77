"""The stops of a ``read_atomic`` query: cuts that no transaction straddles.

**The rule.** A cut is one offset for each partition. A query reads the records below it. A cut is
*atomic* if each transaction has either all of its records in these partitions below the cut, or
none of them. Aborted records do not count.

**Existence of a greatest and a least one.** Take the elementwise minimum of two atomic cuts. A
transaction that lies wholly below both cuts lies wholly below the minimum. One that lies wholly at
or above one of them lies wholly at or above the minimum. The same holds, mirrored, for the maximum.
So the minimum and the maximum of atomic cuts are atomic, and below (above) any bounds there is a
greatest (least) atomic cut, if there is one at all. Below any bounds there is one: the cut with
nothing below it. Lowering finds the greatest: a transaction that is not wholly below the present
cut cannot be below any lower atomic cut, so the cut is lowered to that transaction's first records.
Each step is necessary, so the result is the greatest. Each transaction is visited one time, so the
search ends. Raising to the least cut works in the same way, mirrored.

**Two ways to take the steps.** A step by arrays looks only near the cut: with a million
transactions that do not overlap, the cut is found in 0.1 ms (1.4 s if all were sorted). But if
transactions overlap in one partition after the other, each step leads to the next: 20,000 links in
16 partitions take 7.6 s by arrays. So once the steps have cost as much as sorting, all extents are
sorted into clusters, and each further step is a look-up (0.3 s). The tests check that each way
finds the same cuts as a search through all cuts.

**Why no read is fractured.** The bounds (last stable offsets) of *all* partitions are observed
first, and the extents of transactions after that. A transaction with a record below some bound was
decided before, because an undecided one holds the bound back. A decided one writes no more, so all
its records are in the logs when the extents are read. Later records belong to no transaction with a
record below a bound.

**Transactions that overlap without end.** While each offset is straddled by some transaction, no
atomic cut is above the first of them. The cut does not move, but ``read_committed`` continues. No
record is lost: the cut moves to the first offset that no transaction straddles.

**A start in the middle of a transaction** is the reader's choice: it does not see the part below
the start, and reads the part from the start on as a whole.

**Extents.** An extent is the first and the last offset of what one producer id wrote in one
transaction. Aborted records have none: readers never get them. Extents are stored small and quick
to search: recent ones in a dict, older ones in blocks of arrays that never change, each at least
twice as long as the next.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from functools import cached_property
from typing import Final

import numpy as np
import numpy.typing as npt

from spark_stream.consistency.entries import Kind, Table, aborted_rows
from spark_stream.consistency.ids import NO_TRANSACTION

_NO_FLOOR: Final = -(1 << 62)
# A step with arrays costs, for each block, as much as sorting this many extents. Steps are taken as
# long as they are cheaper than sorting all extents, but at least a few.
_STEP_EXTENTS: Final = 16
_STEPS_MIN: Final = 16


def greatest_cut(bounds: Sequence[int] | Offsets, spans: Sequence[SpansSnapshot]) -> Offsets:
    """Return the greatest atomic cut at or below the bounds. All arrays are by partition, int64."""
    floors = np.full(len(spans), _NO_FLOOR, np.int64)
    return _lower(np.array(bounds, np.int64), floors, spans)


def least_cut(
    floors: Sequence[int] | Offsets, limit: Sequence[int] | Offsets, spans: Sequence[SpansSnapshot]
) -> Offsets:
    """Return the least atomic cut at or above the floors and up to ``limit``, an atomic cut."""
    lower = np.full(len(spans), _NO_FLOOR, np.int64)
    return _raise(np.array(floors, np.int64), np.asarray(limit, np.int64), lower, spans)


def next_cut(
    lower: Sequence[int] | Offsets,
    upper: Sequence[int] | Offsets,
    bounds: Sequence[int] | Offsets,
    spans: Sequence[SpansSnapshot],
) -> Offsets:
    """Return the end of a read from ``lower``, if possible not beyond ``upper``.

    It is the greatest cut at or below ``upper`` and ``bounds`` that is atomic for the records from
    ``lower`` on. If that is no progress although ``bounds`` allow some, it is the least cut that is
    not below ``upper``: a transaction larger than the limit is read as a whole.
    """
    start = np.array(lower, np.int64)
    limit = np.maximum(np.asarray(bounds, np.int64), start)
    wanted = np.clip(np.asarray(upper, np.int64), start, limit)
    if (np.asarray(upper, np.int64) <= start).all():
        return start
    cut = _lower(wanted.copy(), start, spans)
    if (cut > start).any():
        return cut
    greatest = _lower(limit.copy(), start, spans)
    if (greatest == start).all():
        return start
    target = np.minimum(wanted, greatest)
    if (target == start).all():  # the limit left room only where transactions are under way
        target[int((greatest > start).argmax())] += 1
    return _raise(target, greatest, start, spans)


def _lower(cut: Offsets, floors: Offsets, spans: Sequence[SpansSnapshot]) -> Offsets:
    """Lower ``cut`` in place to the greatest atomic one. Offsets below ``floors`` are ignored."""
    blocks = [(place, block) for place, each in enumerate(spans) for block in each.blocks]
    above = [len(block) for _, block in blocks]  # the items from here on are at or above the cut
    steps = _steps_max(blocks)
    moved = True
    while moved:
        moved = False
        for number, (place, block) in enumerate(blocks):
            begun = block.cluster(int(cut[place]))
            if begun >= above[number]:
                continue
            if not steps:
                return _lower_by_clusters(cut, _columns(spans, floors))
            steps -= 1
            reached = slice(begun, above[number])
            above[number] = begun
            moved = True
            cut[place] = min(cut[place], max(int(block.firsts[begun]), floors[place]))
            numbers = block.transactions[reached][block.lasts[reached] >= cut[place]]
            for other, elsewhere in blocks:
                firsts, lasts = elsewhere.extents(numbers)
                firsts = firsts[lasts >= floors[other]]
                if len(firsts):
                    lowest = max(int(firsts.min()), int(floors[other]))
                    cut[other] = min(int(cut[other]), lowest)
    return cut


def _raise(
    cut: Offsets, limit: Offsets, floors: Offsets, spans: Sequence[SpansSnapshot]
) -> Offsets:
    """Raise ``cut`` in place to the least atomic cut. Offsets below ``floors`` are ignored."""
    blocks = [(place, block) for place, each in enumerate(spans) for block in each.blocks]
    below = [block.cluster(int(floors[place])) for place, block in blocks]
    steps = _steps_max(blocks)
    moved = True
    while moved:
        moved = False
        for number, (place, block) in enumerate(blocks):
            begun = block.below(int(cut[place]))
            if cut[place] <= floors[place] or begun <= below[number]:
                continue
            if not steps:
                return np.minimum(_raise_by_clusters(cut, _columns(spans, floors)), limit)
            steps -= 1
            cut[place] = max(int(cut[place]), block.cluster_end(begun))
            begun = block.below(int(cut[place]))
            reached = slice(below[number], begun)
            below[number] = begun
            moved = True
            numbers = block.transactions[reached][block.lasts[reached] >= floors[place]]
            for other, elsewhere in blocks:
                _, lasts = elsewhere.extents(numbers)
                if len(lasts):
                    cut[other] = max(int(cut[other]), int(lasts.max()) + 1)
    return np.minimum(cut, limit)


def _steps_max(blocks: Sequence[tuple[int, Block]]) -> int:
    """Return the number of steps to take before all extents are sorted instead."""
    extents = sum(len(block) for _, block in blocks)
    return _STEPS_MIN + extents // (_STEP_EXTENTS * max(1, len(blocks)))


def _columns(spans: Sequence[SpansSnapshot], floors: Offsets) -> list[tuple[Offsets, ...]]:
    """Return first and last offsets of each partition transaction that ends above the floors."""
    found: list[tuple[Offsets, ...]] = []
    for each, floor in zip(spans, floors.tolist(), strict=True):
        blocks = [block.since(floor) for block in each.blocks] or [block_of({})]
        names = ("transactions", "firsts", "lasts")
        found.append(tuple(np.concatenate([getattr(b, name) for b in blocks]) for name in names))
    return found


def _raise_by_clusters(cut: Offsets, columns: Sequence[tuple[Offsets, ...]]) -> Offsets:
    """Return the least atomic cut at or above ``cut``: the greatest below it, mirrored.

    In the mirror an offset ``o`` is ``-o``, an extent's first offset is its last one, and a cut,
    which lies before its offset, is ``1 - cut``.
    """
    mirrored = [(numbers, -lasts, -firsts) for numbers, firsts, lasts in columns]
    return 1 - _lower_by_clusters(1 - cut, mirrored)


def _lower_by_clusters(cut: Offsets, columns: Sequence[tuple[Offsets, ...]]) -> Offsets:
    """Return the greatest atomic cut at or below ``cut``. ``columns`` come from :func:`_columns`.

    A cluster is a part of a partition whose extents are connected: a cut lies at its first offset
    or after it. Clusters are numbered by partition and offset, so those of a partition at or above
    the cut are the ones from some number on. This is a Python loop because each step depends on the
    one before. It touches every extent once.
    """
    sizes = [len(number) for number, _, _ in columns]
    if not sum(sizes):
        return cut
    place = np.repeat(np.arange(len(sizes)), sizes)
    number, first, last = (np.concatenate(each) for each in zip(*columns, strict=True))
    order = np.lexsort((first, place))
    place, first, last = place[order], first[order], last[order]
    _, transaction = np.unique(number[order], return_inverse=True)
    edges = np.cumsum([0, *sizes])
    opens = np.ones(len(first), np.bool_)
    for low, high in itertools.pairwise(edges.tolist()):
        reach = np.maximum.accumulate(last[low:high])
        np.greater(first[low + 1 : high], reach[:-1], out=opens[low + 1 : high])
    starts = np.flatnonzero(opens)
    cluster = np.cumsum(opens) - 1
    closing = np.maximum.reduceat(last, starts)
    ends = np.searchsorted(starts, edges)[1:]  # of each partition's clusters
    reached = closing >= cut[place[starts]]  # within a partition the last ones, for they rise
    above = ends - np.bincount(place[starts][reached], minlength=len(sizes))
    # The first step, which may be large, is taken by arrays.
    seen = np.zeros(int(transaction.max()) + 1, np.bool_)
    seen[transaction[reached[cluster]]] = True
    lowered = above.copy()
    np.minimum.at(lowered, place[seen[transaction]], cluster[seen[transaction]])
    reached_ranges = list(zip(lowered.tolist(), above.tolist(), strict=True))
    top, done = lowered.tolist(), seen.tolist()
    by_transaction = np.argsort(transaction, kind="stable")
    begins = np.searchsorted(transaction[by_transaction], np.arange(len(seen) + 1)).tolist()
    where = list(zip(place[by_transaction].tolist(), cluster[by_transaction].tolist(), strict=True))
    members = transaction.tolist()
    bounds = np.append(starts, len(first)).tolist()
    while reached_ranges:
        low, high = reached_ranges.pop()
        for member in members[bounds[low] : bounds[high]]:
            if done[member]:
                continue
            done[member] = True
            for other, found in where[begins[member] : begins[member + 1]]:
                if found < top[other]:
                    reached_ranges.append((found, top[other]))
                    top[other] = found
    lowest = np.array(top)
    moved = np.flatnonzero(lowest < ends)
    cut[moved] = np.minimum(cut[moved], first[starts[lowest[moved]]])
    return cut


Offsets = npt.NDArray[np.int64]
Key = tuple[int, int]
"""(transaction, producer id)."""

_RECENT_MAX: Final = 4096  # at most this many are Python objects, and copied for a snapshot
_UNSETTLED_MAX: Final = 4096


class Block:
    """Extents in arrays, ordered by their first offsets. It never changes.

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
        """A mask of items that overlap none before them: a cut may be at their first offsets."""
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
        """Return the number of items that begin below the offset."""
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
        """Return the block without the offsets below this one."""
        if not len(self) or self.firsts[0] >= offset:
            return self
        return self._only(self.lasts >= offset, np.maximum(self.firsts, offset))

    def _only(self, kept: npt.NDArray[np.bool_], firsts: Offsets) -> Block:
        return Block(self.transactions[kept], self.producers[kept], firsts[kept], self.lasts[kept])


class SpansSnapshot:
    """The extents of one partition's transactions at one moment. Any thread may use it."""

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
        self._aborted: set[Key] = set()  # not yet removed from the blocks
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
        """Remove the offsets below ``before``, the log's new start."""
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
        """Return a copy of the present state. Working on it needs no lock."""
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
