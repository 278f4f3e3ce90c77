"""Where a read_atomic query may stop: cuts that no transaction straddles.

**The rule.** A cut is one offset for each partition; a query reads what lies below. A cut is
*atomic* if for every transaction either all its records in these partitions lie below the cut, or
none does. Aborted records do not count.

**Why there is a greatest and a least one.** Take the elementwise minimum of two atomic cuts. A
transaction that lies wholly below both cuts lies wholly below the minimum; one that lies wholly at
or above one of them lies wholly at or above the minimum. The same holds, mirrored, for the maximum.
So the minimum and the maximum of atomic cuts are atomic, and below (above) any bounds there is a
greatest (least) atomic cut, if there is one at all. Below any bounds there is one: the cut with
nothing below it. Lowering finds the greatest: a transaction that is not wholly below the present
cut cannot be below any lower atomic cut, so the cut is lowered to that transaction's first records.
Each step is necessary, so the result is the greatest; each transaction is looked at once, so the
search ends. Raising to the least cut works in the same way, mirrored.

**Two ways to take the steps.** A step by arrays looks only near the cut: with a million
transactions that do not overlap, the cut is found in 0.1 ms (1.4 s if all were sorted). But if
transactions overlap in one partition after the other, each step leads to the next: 20,000 links in
16 partitions take 7.6 s by arrays. So once the steps have cost as much as sorting, all extents are
sorted into clusters, and each further step is a look-up (0.3 s). The tests check that each way
finds the same cuts as a search through all cuts.

**Why no read is fractured.** The bounds (last stable offsets) of *all* partitions are observed
first, and only after that where transactions lie. A transaction with a record below some bound was
decided before, because an undecided one holds the bound back. A decided one writes no more, so all
its records are in the logs when the extents are read. What is written later belongs to no
transaction with a record below a bound.

**Transactions that overlap without end.** While at every offset some transaction is under way, no
atomic cut is above the first of them: the cut does not move, and read_committed goes on meanwhile.
Nothing is lost. As soon as there is an offset that no transaction straddles, the cut moves there.

**A start in the middle of a transaction** is the reader's choice: the part below the start is not
seen, and the part from the start on is read as a whole.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Final

import numpy as np

from spark_stream.consistency.partition.extents import Block, Offsets, SpansSnapshot, block_of

_NO_FLOOR: Final = -(1 << 62)
# A step with arrays costs, for each block, as much as sorting this many extents. Steps are taken as
# long as they are cheaper than sorting all extents, but at least a few.
_STEP_EXTENTS: Final = 16
_STEPS_MIN: Final = 16


def greatest_cut(bounds: Sequence[int] | Offsets, spans: Sequence[SpansSnapshot]) -> Offsets:
    """Return the greatest atomic cut at or below the bounds; all by partition, int64."""
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
    """Return how far a read from ``lower`` goes, if possible not beyond ``upper``.

    That is the greatest cut at or below ``upper`` and ``bounds``, atomic for what lies at or above
    ``lower``. If that is no progress although ``bounds`` allow some, it is the least cut that is
    not below ``upper``: a transaction larger than the limit is read whole.
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
    """Lower ``cut`` in place to the greatest atomic one; what lies below ``floors`` is ignored."""
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
    """Raise ``cut`` in place to the least atomic cut; offsets below ``floors`` are ignored."""
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
    """Return how many steps are taken before all extents are sorted instead."""
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
    """Return the greatest atomic cut at or below ``cut``; ``columns`` come from :func:`_columns`.

    A cluster is a part of a partition whose extents are connected: a cut lies at its first offset
    or after it. Clusters are numbered by partition and offset, so those of a partition at or above
    the cut are the ones from some number on. This is a Python loop because each step depends on the
    one before; it touches every extent once.
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
