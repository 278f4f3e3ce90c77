"""Decides how to read ranges of partitions: no I/O, no threads, no clock.

:class:`RangeCore` decides within one range, :class:`FetchCore` among many: which ranges to ask for,
and when. A shell (``loop``) carries out what they say, and reports the results.

Two causes remove records from a log: retention at its start, and a failover that cuts off records
which were not replicated. A reader of such records gets an error. With ``on_loss="continue"`` it
logs a warning and continues with the rest.
"""

from __future__ import annotations

from collections.abc import Collection, Hashable, Mapping
from typing import Final, Generic, TypeVar

from msgspec import Struct, field

from spark_stream.consistency.replication.epochs import NO_LINEAGE, Lineage
from spark_stream.errors import (
    DataLoss,
    InvalidOption,
    IsologError,
    OffsetEvicted,
    RequestTimeout,
)
from spark_stream.loggers import logger_of

logger = logger_of(__name__)

K = TypeVar("K", bound=Hashable)

AHEAD_ITEMS: Final = 4
RETRY_PAUSE_S: Final = 0.1
FOLLOWER_PAUSE_S: Final = 10.0
FAIL = "fail"
CONTINUE = "continue"
_HINT = "To go on with what is left, make the consumer with on_loss='continue'."
GONE: Final = (DataLoss, OffsetEvicted)
"""The errors of a loss."""


class Ask(Struct, frozen=True):
    """Ask the leader for what is visible from ``start`` on; ``lineage`` is that of ``start``.

    ``may_ask_follower``: a follower may be asked in its place.
    """

    start: int
    lineage: Lineage
    may_ask_follower: bool = False


class PauseUntil(Struct, frozen=True):
    """Do nothing until this time."""

    moment: float


class RangeCore:
    """The reader of ``[start, end)`` of a partition; ``end`` None: of all from ``start`` on.

    ``lineage``: that of ``start``. ``checks``: if the range is empty, ask whether the log has, or
    had, such an offset. ``patience_s``: how long to retry. Without ``fail_on_loss`` continue with
    what is left if records are gone. ``may_ask_followers``: for records, in the leader's place.

    ===========  ===================================================  ==============
    state        event                                                then
    ===========  ===================================================  ==============
    to ask       (``next`` says what)                                 asked
    asked        received                                             asked
    asked        ended, and there may be more                         to ask
    asked        ended at the end, or at a bound that did not move    over
    asked        failed, retriable, patience is left                  pausing
    asked        failed because records are gone, which is no error   to ask
    asked        failed otherwise: the error is raised                over
    asked        a follower brought nothing, or failed                to ask, the leader
    pausing      the time has come                                    to ask
    ===========  ===================================================  ==============

    Invariants:

    * All that is delivered begins at ``position`` or after it, and moves ``position`` to its end.
      So no record is delivered twice or out of order, and none that a leader has is skipped.
    * ``position`` moves back, or over records, only if a leader says that records are gone. Then
      it is where the leader says, and its lineage is unknown.
    * A range without an ``end`` is never over by itself.
    * A follower only brings records. What it does not bring (the rest of a range, news, an error)
      the leader is asked for at once. It is left alone for ``FOLLOWER_PAUSE_S`` after it failed,
      for one ask after it had nothing new, and for the rest of a range of which it lacks records.

    Order of effects: ``position`` and ``lineage`` move first, then the batch is delivered. A shell
    that stops after any batch, or any error, can continue there with another core.
    """

    def __init__(
        self,
        start: int,
        end: int | None,
        lineage: Lineage = NO_LINEAGE,
        *,
        patience_s: float,
        checks: bool = False,
        fail_on_loss: bool = True,
        may_ask_followers: bool = False,
    ) -> None:
        self.position = start
        self.lineage = lineage
        self.end = end
        self._patience_s = patience_s
        self._checks = checks
        self._fail_on_loss = fail_on_loss
        self.at_follower = False
        """Whether the present ask is one of a follower; the shell sets it."""
        self._may_ask_followers = may_ask_followers and not checks
        self._leader_next = False
        self._leader_until = 0.0
        self._asked_from = start
        self._heard = 0.0  # when the leader was last asked, or answered
        self._failing_since: float | None = None
        self._pause_until: float | None = None
        self._partitions: int | None = None
        self._is_over = False

    def next(self, now: float) -> Ask | PauseUntil | None:
        """Return what to do next; None if the range is over."""
        if self._is_over or (self.is_at_end and not self._checks):
            return None
        if self._pause_until is not None and now < self._pause_until:
            return PauseUntil(self._pause_until)
        self._pause_until = None
        self._asked_from, self._heard, self.at_follower = self.position, now, False
        may_ask = self._may_ask_followers and not self._leader_next and now >= self._leader_until
        return Ask(self.position, self.lineage, may_ask)

    def on_received(
        self, following: int, lineage: Lineage, rows: int, partitions: int | None, now: float
    ) -> bool:
        """Record a batch; return whether to deliver it: it has rows, or news.

        ``following``: where to read on; ``lineage``: that of ``following``. ``partitions``: how
        many the topic has, if the leader said so.
        """
        moved = following != self.position
        told = partitions not in (None, self._partitions)
        self.position, self.lineage = following, lineage
        self._partitions = partitions or self._partitions
        self._heard, self._failing_since = now, None
        return bool(rows) or moved or told

    def on_ended(self) -> None:
        """Record that the ask was answered completely."""
        if self.at_follower:
            self._leader_next = self.position == self._asked_from  # nothing came
            if self._leader_next and self.end is not None:
                self._may_ask_followers = False
            return
        self._failing_since, self._leader_next = None, False
        if self.end is not None:  # a failover may have lowered the bound
            self._is_over = self.is_at_end or self.position == self._asked_from

    def on_failed(self, error: IsologError, now: float) -> int | None:
        """Record that the leader was not reached, or refused; or a follower, whatever it says.

        Return where to continue if records are gone, else None.

        Raises:
            IsologError: ``error`` itself, if it is final or patience has run out.
        """
        if self.at_follower:
            self._leader_until = now + FOLLOWER_PAUSE_S
            return None
        if isinstance(error, GONE):
            self.position = where_to_go_on(error, fail=self._fail_on_loss)
            self.lineage = NO_LINEAGE
            return self.position
        if not error.retriable:
            raise error
        if self._failing_since is None:
            # A bounded read that ran into its own timeout has already waited for that long.
            waited = isinstance(error, RequestTimeout) and self.end is not None
            self._failing_since = self._heard if waited else now
        if now - self._failing_since >= self._patience_s:
            raise error
        self._pause_until = now + RETRY_PAUSE_S
        return None

    def return_to(self, offset: int, lineage: Lineage) -> None:
        """Read on from here: what was received after it could not be delivered."""
        self.position, self.lineage = offset, lineage
        self._is_over = False

    @property
    def is_at_end(self) -> bool:
        """Whether all of the range was received, up to its end."""
        return self.end is not None and self.position >= self.end


def fails_on(choice: str) -> bool:
    """Return whether a loss is an error; raise InvalidOption for an unknown choice."""
    if choice not in (FAIL, CONTINUE):
        raise InvalidOption(
            f"on_loss takes {FAIL} | {CONTINUE}, not {choice!r}", option="on_loss", value=choice
        )
    return choice == FAIL


def where_to_go_on(error: IsologError, *, fail: bool) -> int:
    """Return the offset of what is left after this error, or raise it if ``fail``.

    Raises:
        DataLoss, OffsetEvicted: that error.
    """
    name = "left" if isinstance(error, DataLoss) else "log_start_offset"
    left = error.details.get(name)
    if fail or not isinstance(left, int):
        if isinstance(error, DataLoss):
            raise DataLoss(error.message, hint=_HINT, **error.details) from None
        raise error
    logger.warning("%s; going on at offset %d (on_loss is continue)", error.message, left)
    return left


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
