"""Decides which ranges to ask for, and when, for a reader of many ranges; no I/O, no clock.

``range_core`` decides what happens within one range.
"""

from __future__ import annotations

from collections.abc import Collection, Hashable, Mapping
from typing import Final, Generic, TypeVar

from msgspec import Struct, field

from spark_stream.client.reading.range_core import PauseUntil, RangeCore
from spark_stream.consistency.replication.epochs import Lineage
from spark_stream.errors import IsologError

K = TypeVar("K", bound=Hashable)

AHEAD_ITEMS: Final = 4


class AskRange(Struct, Generic[K], frozen=True):
    """Ask the leader of this range for what is visible from ``start`` on.

    ``may_ask_follower``: a follower may be asked in its place.
    """

    number: int
    key: K
    start: int
    lineage: Lineage
    may_ask_follower: bool = False


class RangeMoved(Struct, Generic[K], frozen=True):
    """Tell the consumer that records are gone, and that the next ones begin at ``left``."""

    number: int
    key: K
    left: int


class RangeOver(Struct, Generic[K], frozen=True):
    """Tell the consumer that a range is over, or failed."""

    number: int
    key: K
    error: IsologError | None


class _Range(Struct, Generic[K]):
    core: RangeCore
    asked: int | None = None  # the number of the ask that is under way
    first: int = 0  # items of asks below this number are dropped
    last: int = 0
    items: int = 0  # received but not taken
    size: int = 0


class _Ask(Struct, Generic[K]):
    key: K
    call: int | None = None
    is_answered: bool = False  # it has its last answer in this call


class _Call(Struct):
    heard: float
    numbers: set[int] = field(default_factory=set)


class AheadLimits(Struct, frozen=True):
    """What a reader that takes one range after the other may hold, in bytes.

    ``total``: of all ranges. ``call``: what one call may send before any of it is taken.

    A call has room if the bytes held, ``call`` for each open call, and ``call`` for itself are
    within ``total``. Without room only a call of the first range alone is sent. So the reader holds
    at most ``total`` and ``call``, and one answer more of each open call, because a broker may
    exceed its credit by one frame.
    """

    total: int
    call: int


class FetchCore(Generic[K]):
    """The reader of many ranges, each with a key.

    An *ask* is one question about one range, and has a number. A *call* carries one or several asks
    to a leader. The shell finds the leader of each ask, and groups asks into calls as it likes.

    ``silence_s``: how long a call may be silent. ``ahead_bytes``: once this much of a range, or
    ``AHEAD_ITEMS`` items, was received and not taken, no more of it is asked for.

    With a ``budget`` the consumer takes one range after the other, in the order of ``ranges``. The
    later ranges are read ahead within the budget.

    ===========  ==========================================  ============================
    range        event                                       then
    ===========  ==========================================  ============================
    ready        ``next``: there is room                     asked (or pausing, or over)
    ready        ``next``: there is no room                  full
    full         taken, and there is room                    ready
    asked        its call ends, is lost, or it fails         ready, or over by an error
    pausing      the time has come                           ready
    any          ``go_back``                                 ready
    any          ``give_up``                                 over
    ===========  ==========================================  ============================

    Invariants:

    * A range has at most one ask. Events of any other ask change nothing.
    * A range's items are those that its RangeCore allows, in that order. After ``go_back`` or
      ``give_up`` what was received before is no longer current, and is dropped.
    * A range that is over or failed says so once, as its last item, unless ``go_back`` follows. A
      range that is given up says nothing.
    * With a budget the first range can always go on. Its call needs no room. The shell sorts the
      asks of a call, so only answers of earlier ranges come before its own. Its ask ends with its
      last answer, because the call itself may wait for credit that later ranges use.

    Order of effects: what ``on_received`` accepts, and then ``out``, is queued in the order of the
    events; so a range's end comes after all of its records. Calls are begun before they are sent.
    """

    def __init__(
        self,
        ranges: Mapping[K, RangeCore],
        *,
        silence_s: float,
        ahead_bytes: int,
        budget: AheadLimits | None = None,
    ) -> None:
        self._ranges = {key: _Range[K](core) for key, core in ranges.items()}
        self._silence_s = silence_s
        self._ahead_bytes = ahead_bytes
        self._budget = budget
        self.first = None if budget is None else next(iter(ranges))
        """The range that the consumer takes now. All earlier ones have ended."""
        self._ready = dict.fromkeys(ranges)
        self._pausing: dict[K, float] = {}  # ordered by time
        self._asks: dict[int, _Ask[K]] = {}
        self._calls: dict[int, _Call] = {}  # the longest silent one first
        self._numbers = 0
        self.out: list[RangeMoved[K] | RangeOver[K]] = []
        """What to queue now, after what was received; the shell empties it."""

    def next(self, now: float) -> list[AskRange[K]]:
        """Return what to ask now."""
        self._end_first()
        for key in [key for key, moment in self._pausing.items() if moment <= now]:
            del self._pausing[key]
            self._ready[key] = None
        asks = []
        for key in [key for key in self._ready if self._has_room(self._ranges[key])]:
            del self._ready[key]
            found = self._ranges[key]
            step = found.core.next(now)
            if step is None:
                self.out.append(RangeOver(found.last, key, None))
            elif isinstance(step, PauseUntil):
                self._pausing[key] = step.moment
            else:
                self._numbers += 1
                found.asked = found.last = self._numbers
                self._asks[self._numbers] = _Ask(key)
                asks.append(
                    AskRange(self._numbers, key, step.start, step.lineage, step.may_ask_follower)
                )
        return asks

    def wake_at(self) -> float | None:
        """Return when ``next`` or ``overdue`` is due if nothing happens before, or None."""
        moments = list(self._pausing.values())[:1]
        for call in self._calls.values():
            moments.append(call.heard + self._silence_s)
            break
        return min(moments, default=None)

    @property
    def has_room(self) -> bool:
        """Whether any call may be sent now. Otherwise only one of the first range alone."""
        if self._budget is None:
            return True
        held = sum(each.size for each in self._ranges.values())
        return held + (len(self._calls) + 1) * self._budget.call <= self._budget.total

    def begin(
        self, numbers: list[int], now: float, *, follower_asks: Collection[int] = ()
    ) -> int | None:
        """Start a call with these asks, and return its number; None if all of them are over.

        ``follower_asks``: those that ask a follower.
        """
        asks = {number for number in numbers if number in self._asks}
        if not asks:
            return None
        self._numbers += 1
        self._calls[self._numbers] = _Call(now, asks)
        for number in asks:
            ask = self._asks[number]
            ask.call = self._numbers
            self._ranges[ask.key].core.at_follower = number in follower_asks
        return self._numbers

    def position(self, number: int) -> tuple[int, Lineage] | None:
        """Return the position of an ask's range, and its lineage; None if the ask is over."""
        ask = self._asks.get(number)
        if ask is None:
            return None
        core = self._ranges[ask.key].core
        return core.position, core.lineage

    def on_received(
        self,
        number: int,
        following: int,
        lineage: Lineage,
        rows: int,
        partitions: int | None,
        size: int,
        now: float,
        *,
        is_last: bool = False,
    ) -> bool:
        """Record ``size`` received bytes; return whether to queue them for the consumer.

        ``is_last``: this is the last answer of the range in its call.
        """
        ask = self._asks.get(number)
        if ask is None:
            return False
        found = self._ranges[ask.key]
        self._hear(ask.call, now)
        is_worth_giving = found.core.on_received(following, lineage, rows, partitions, now)
        ask.is_answered = is_last or found.core.is_at_end
        if is_last and self._budget is not None:
            is_worth_giving = True  # ``next`` is called when it is taken
        if not is_worth_giving:
            return False
        found.items += 1
        found.size += size
        return True

    def is_current(self, key: K, number: int) -> bool:
        """Return whether what was queued of an ask is still to be delivered."""
        return number >= self._ranges[key].first

    def on_taken(self, key: K, number: int, size: int) -> None:
        """Record that the consumer has taken what was queued."""
        found = self._ranges[key]
        if number >= found.first:
            found.items -= 1
            found.size -= size

    def on_ended(self, call: int) -> None:
        """Record that all asks of a call were answered."""
        for number in self._over(call):
            found = self._settle(number)
            if found is not None:
                found.core.on_ended()

    def on_lost(self, call: int, error: IsologError, now: float) -> None:
        """Record that a call was lost, or refused."""
        for number in self._over(call):
            self.on_failed(number, error, now)

    def on_failed(
        self, number: int, error: IsologError, now: float, *, at_follower: bool = False
    ) -> None:
        """Record that an ask failed; ``at_follower``: before it got to a follower."""
        ask = self._asks.get(number)
        if ask is None:
            return
        found = self._settle(number)
        assert found is not None
        found.core.at_follower |= at_follower
        try:
            left = found.core.on_failed(error, now)
        except IsologError as lasting:
            self._ready.pop(ask.key)
            self.out.append(RangeOver(number, ask.key, lasting))
            return
        if left is not None:
            found.items += 1
            self.out.append(RangeMoved(number, ask.key, left))

    def overdue(self, now: float) -> list[int]:
        """Return the calls that were silent for too long; the shell reports them as lost.

        While the consumer has not taken what a call delivered, the call may be silent.
        """
        found = []
        for number, call in list(self._calls.items()):
            if call.heard + self._silence_s > now:
                break
            if any(self._ranges[self._asks[each].key].items for each in call.numbers):
                self._hear(number, now)
            else:
                found.append(number)
        return found

    def give_up(self, key: K) -> int | None:
        """Stop reading a range; drop what was received of it.

        Return the call to give up, if there is one.
        """
        found = self._ranges[key]
        given_up = None
        if found.asked is not None:
            call = self._asks[found.asked].call
            self._settle(found.asked)
            if call is not None and not self._calls[call].numbers:
                del self._calls[call]
                given_up = call
        self._pausing.pop(key, None)
        self._ready.pop(key, None)
        found.first = found.last = self._numbers + 1
        found.items = found.size = 0
        return given_up

    def go_back(self, key: K, offset: int, lineage: Lineage) -> int | None:
        """Read a range again from here: what was received after it cannot be delivered.

        Return the call to give up, if there is one.
        """
        given_up = self.give_up(key)
        self._ranges[key].core.return_to(offset, lineage)
        self._ready[key] = None
        return given_up

    def _end_first(self) -> None:
        """Settle the first range if it has its last answer and its call continues with others."""
        number = None if self.first is None else self._ranges[self.first].asked
        if number is None or not (ask := self._asks[number]).is_answered:
            return
        assert ask.call is not None
        # The last one in a call is settled by the end of the call, which needs no credit.
        if len(self._calls[ask.call].numbers) > 1:
            settled = self._settle(number)
            assert settled is not None
            settled.core.on_ended()

    def _has_room(self, found: _Range[K]) -> bool:
        return found.items < AHEAD_ITEMS and found.size < self._ahead_bytes

    def _hear(self, call: int | None, now: float) -> None:
        if call is not None:
            known = self._calls.pop(call)
            known.heard = now
            self._calls[call] = known

    def _over(self, call: int) -> list[int]:
        known = self._calls.pop(call, None)
        return [] if known is None else sorted(known.numbers)

    def _settle(self, number: int) -> _Range[K] | None:
        """End an ask; its range is ready for another one."""
        ask = self._asks.pop(number, None)
        if ask is None:
            return None
        if ask.call is not None and ask.call in self._calls:
            self._calls[ask.call].numbers.discard(number)
        found = self._ranges[ask.key]
        found.asked = None
        self._ready[ask.key] = None
        return found
