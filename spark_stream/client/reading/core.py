"""The reader's decisions about ranges of partitions. Pure: no I/O, no threads, no clock.

:class:`RangeCore` decides within one range. :class:`FetchCore` decides for many ranges which of
them to fetch, and when. A shell (``loop``) carries out their decisions and reports the results.

Records are removed from a log by retention at its start, and by a failover that truncates records
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
_HINT = "To continue with the remaining records, create the consumer with on_loss='continue'."
LOSS_ERRORS: Final = (DataLoss, OffsetEvicted)
"""The errors for removed records."""


class NextFetch(Struct, frozen=True):
    """Fetch the visible records from ``start`` on. ``lineage`` is that of ``start``.

    ``may_use_follower``: the fetch may go to a follower instead of the leader.
    """

    start: int
    lineage: Lineage
    may_use_follower: bool = False


class PauseUntil(Struct, frozen=True):
    """Wait until this time."""

    moment: float


class RangeCore:
    """The state of a read of ``[start, end)`` of a partition. Without ``end`` it has no end.

    ``lineage``: that of ``start``. ``checks``: fetch even if the range is empty, so that the leader
    checks that the log has or had such an offset. ``patience_s``: the seconds for retries. Without
    ``fail_on_loss`` the read continues with the remaining records if some were removed.
    ``may_use_followers``: records may come from followers. ``has_table``: records below the log
    start may be in a table, so their removal ends the range, and the shell reads them there.

    ===========  ===================================================  ==============
    state        event                                                then
    ===========  ===================================================  ==============
    ready        ``next``                                             fetching
    fetching     received                                             fetching
    fetching     ended, and there may be more                         ready
    fetching     ended at the end, or at a bound that did not move    ended
    fetching     failed, retriable, patience is left                  pausing
    fetching     failed: records were removed, ``fail_on_loss`` off   ready
    fetching     failed otherwise: the error is raised                ended
    ended        read below the log start from a table                ready
    fetching     a follower had no new records, or failed             ready, for the leader
    pausing      the pause has ended                                  ready
    ===========  ===================================================  ==============

    Invariants:

    * Each delivered batch begins at ``position`` or after it, and moves ``position`` to its end. So
      no record is delivered twice or out of order, and no record that a leader has is skipped.
    * ``position`` moves back, or over records, only if a leader reports that records were removed.
      It then moves to the offset in the leader's error, and its lineage is unknown.
    * A range without an ``end`` ends only by an error.
    * A follower only delivers records. Everything else (the rest of a range, news, an error) is
      fetched from the leader without a pause. A follower is not used for ``FOLLOWER_PAUSE_S`` after
      it failed, for one fetch after it had no new records, and for the rest of a range if it lacks
      records of it.

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
        may_use_followers: bool = False,
        has_table: bool = False,
    ) -> None:
        self.position = start
        self.lineage = lineage
        self.end = end
        self._patience_s = patience_s
        self._checks = checks
        self._fail_on_loss = fail_on_loss
        self.at_follower = False
        """Whether the present fetch goes to a follower. Set by the shell."""
        self._may_use_followers = may_use_followers and not checks
        self._has_table = has_table
        self._leader_next = False
        self._leader_until = 0.0
        self._fetched_from = start
        self._heard = 0.0  # the time of the last fetch from the leader, or of its answer
        self._failing_since: float | None = None
        self._pause_until: float | None = None
        self._partitions: int | None = None
        self._is_over = False

    def next(self, now: float) -> NextFetch | PauseUntil | None:
        """Return the next fetch or pause. None if the range has ended."""
        if self._is_over or (self.is_at_end and not self._checks):
            return None
        if self._pause_until is not None and now < self._pause_until:
            return PauseUntil(self._pause_until)
        self._pause_until = None
        self._fetched_from, self._heard, self.at_follower = self.position, now, False
        may_ask = self._may_use_followers and not self._leader_next and now >= self._leader_until
        return NextFetch(self.position, self.lineage, may_ask)

    def on_received(
        self, following: int, lineage: Lineage, rows: int, partitions: int | None, now: float
    ) -> bool:
        """Record a batch. Return True if it has rows or news and should be delivered.

        ``following``: the offset after the batch. ``lineage``: that of ``following``.
        ``partitions``: the topic's number of partitions, if the answer has it.
        """
        moved = following != self.position
        is_news_of_partitions = partitions not in (None, self._partitions)
        self.position, self.lineage = following, lineage
        self._partitions = partitions or self._partitions
        self._heard, self._failing_since = now, None
        return bool(rows) or moved or is_news_of_partitions

    def on_ended(self) -> None:
        """Record that the fetch was answered completely."""
        if self.at_follower:
            self._leader_next = self.position == self._fetched_from  # no records arrived
            if self._leader_next and self.end is not None:
                self._may_use_followers = False
            return
        self._failing_since, self._leader_next = None, False
        if self.end is not None:  # a failover may have lowered the bound
            self._is_over = self.is_at_end or self.position == self._fetched_from

    def on_failed(self, error: IsologError, now: float) -> int | None:
        """Record that the leader was not reached or refused the fetch, or that a follower failed.

        Return the offset to continue at if records were removed, else None.

        Raises:
            IsologError: ``error`` itself, if it is final or the time for retries has run out.
        """
        if self.at_follower:
            self._leader_until = now + FOLLOWER_PAUSE_S
            return None
        if self._has_table and isinstance(error, OffsetEvicted):
            raise error
        if isinstance(error, LOSS_ERRORS):
            self.position = continue_at(error, fail=self._fail_on_loss)
            self.lineage = NO_LINEAGE
            return self.position
        if not error.retriable:
            raise error
        if self._failing_since is None:
            # A bounded read that timed out has already waited for that long.
            waited = isinstance(error, RequestTimeout) and self.end is not None
            self._failing_since = self._heard if waited else now
        if now - self._failing_since >= self._patience_s:
            raise error
        self._pause_until = now + RETRY_PAUSE_S
        return None

    def return_to(self, offset: int, lineage: Lineage) -> None:
        """Continue from this offset, because the received records after it cannot be delivered."""
        self.position, self.lineage = offset, lineage
        self._is_over = False

    @property
    def is_at_end(self) -> bool:
        """Whether the range was received up to its end."""
        return self.end is not None and self.position >= self.end


def fails_on(choice: str) -> bool:
    """Return whether removed records are an error. Raise InvalidOption for an unknown choice."""
    if choice not in (FAIL, CONTINUE):
        raise InvalidOption(
            f"on_loss takes {FAIL} | {CONTINUE}, not {choice!r}", option="on_loss", value=choice
        )
    return choice == FAIL


def continue_at(error: IsologError, *, fail: bool) -> int:
    """Return the offset of the first remaining record after this error, or raise it if ``fail``.

    Raises:
        DataLoss, OffsetEvicted: This error.
    """
    name = "left" if isinstance(error, DataLoss) else "log_start_offset"
    left = error.details.get(name)
    if fail or not isinstance(left, int):
        if isinstance(error, DataLoss):
            raise DataLoss(error.message, hint=_HINT, **error.details) from None
        raise error
    logger.warning("records were removed; continuing at offset %d: %s", left, error.message)
    return left


class RangeFetch(Struct, Generic[K], frozen=True):
    """Fetch the visible records of this range from ``start`` on.

    ``may_use_follower``: the fetch may go to a follower instead of the leader.
    """

    number: int
    key: K
    start: int
    lineage: Lineage
    may_use_follower: bool = False


class RangeMoved(Struct, Generic[K], frozen=True):
    """News for the consumer: records were removed, and the next ones begin at ``left``."""

    number: int
    key: K
    left: int


class RangeOver(Struct, Generic[K], frozen=True):
    """News for the consumer: a range has ended, or failed with ``error``."""

    number: int
    key: K
    error: IsologError | None


class _Range(Struct, Generic[K]):
    core: RangeCore
    fetch: int | None = None  # the number of the fetch that is under way
    first: int = 0  # items of fetches below this number are dropped
    last: int = 0
    items: int = 0  # received but not taken
    size: int = 0


class _PendingFetch(Struct, Generic[K]):
    key: K
    call: int | None = None
    is_answered: bool = False  # it has its last answer in this call


class _Call(Struct):
    heard_at: float
    numbers: set[int] = field(default_factory=set)


class AheadLimits(Struct, frozen=True):
    """Memory limits of a reader that takes one range after the other, in bytes.

    ``total``: for all ranges. ``call``: the bytes that one call may send before the consumer takes
    any.

    A call has room if the bytes held, ``call`` for each open call, and ``call`` for itself are
    within ``total``. Without room only a call of the first range alone is sent. So the reader holds
    at most ``total`` and ``call``, and one answer more of each open call, because a broker may
    exceed its credit by one frame.
    """

    total: int
    call: int


class FetchCore(Generic[K]):
    """The state of a reader of many ranges, each with a key.

    A *fetch* is one request for records of one range, and has a number. A *call* carries one or
    several fetches to a broker. The shell finds the broker of each fetch, and may group fetches
    into calls.

    ``silence_s``: a call without an answer for this time counts as lost. ``ahead_bytes``: a range
    is not fetched further while this much of it, or ``AHEAD_ITEMS`` items, was received and not
    taken.

    With a ``budget`` the consumer takes one range after the other, in the order of ``ranges``. The
    later ranges are prefetched within the budget.

    ===========  ==========================================  ============================
    range        event                                       then
    ===========  ==========================================  ============================
    ready        ``next``: there is room                     fetching (or pausing, or ended)
    ready        ``next``: there is no room                  full
    full         taken, and there is room                    ready
    fetching     its call ends, is lost, or it fails         ready, or ended by an error
    pausing      the pause has ended                         ready
    any          ``go_back``                                 ready
    any          ``give_up``                                 ended
    ===========  ==========================================  ============================

    Invariants:

    * A range has at most one fetch. Events of earlier fetches are ignored.
    * A range's items are those that its RangeCore allows, in that order. After ``go_back`` or
      ``give_up`` earlier items are no longer current, and are dropped.
    * A range that ended or failed reports this once, as its last item, unless ``go_back`` follows.
      A range that was given up reports nothing.
    * With a budget the first range can always continue. Its call needs no room. The shell sorts the
      fetches of a call, so only answers of earlier ranges come before its own. Its fetch ends with
      its last answer, because the call itself may wait for credit that later ranges use.

    Order of effects: items that ``on_received`` accepts, and then ``out``, are queued in the order
    of the events. So a range's end comes after all of its records. Calls are begun before they are
    sent.
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
        self._fetches: dict[int, _PendingFetch[K]] = {}
        self._calls: dict[int, _Call] = {}  # the longest silent one first
        self._numbers = 0
        self.out: list[RangeMoved[K] | RangeOver[K]] = []
        """News to queue after the received items. The shell empties it."""

    def next(self, now: float) -> list[RangeFetch[K]]:
        """Return the fetches to send now."""
        self._end_first()
        for key in [key for key, moment in self._pausing.items() if moment <= now]:
            del self._pausing[key]
            self._ready[key] = None
        fetches = []
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
                found.fetch = found.last = self._numbers
                self._fetches[self._numbers] = _PendingFetch(key)
                fetches.append(
                    RangeFetch(self._numbers, key, step.start, step.lineage, step.may_use_follower)
                )
        return fetches

    def wake_at(self) -> float | None:
        """Return the time at which ``next`` or ``overdue`` is due without other events, or None."""
        moments = list(self._pausing.values())[:1]
        for call in self._calls.values():
            moments.append(call.heard_at + self._silence_s)
            break
        return min(moments, default=None)

    @property
    def has_room(self) -> bool:
        """Whether any call may be sent now. Otherwise only a call with the first range alone."""
        if self._budget is None:
            return True
        held = sum(each.size for each in self._ranges.values())
        return held + (len(self._calls) + 1) * self._budget.call <= self._budget.total

    def begin(
        self, numbers: list[int], now: float, *, follower_fetches: Collection[int] = ()
    ) -> int | None:
        """Start a call with these fetches, and return its number. None if all of them have ended.

        ``follower_fetches``: the fetches that go to a follower.
        """
        fetches = {number for number in numbers if number in self._fetches}
        if not fetches:
            return None
        self._numbers += 1
        self._calls[self._numbers] = _Call(now, fetches)
        for number in fetches:
            fetch = self._fetches[number]
            fetch.call = self._numbers
            self._ranges[fetch.key].core.at_follower = number in follower_fetches
        return self._numbers

    def position(self, number: int) -> tuple[int, Lineage] | None:
        """Return the position of a fetch's range, and its lineage. None if the fetch has ended."""
        fetch = self._fetches.get(number)
        if fetch is None:
            return None
        core = self._ranges[fetch.key].core
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
        """Record ``size`` received bytes. Return whether to queue them for the consumer.

        ``is_last``: this is the last answer of the range in its call.
        """
        fetch = self._fetches.get(number)
        if fetch is None:
            return False
        found = self._ranges[fetch.key]
        self._record_answer(fetch.call, now)
        is_news = found.core.on_received(following, lineage, rows, partitions, now)
        fetch.is_answered = is_last or found.core.is_at_end
        if is_last and self._budget is not None:
            is_news = True  # ``next`` is called when it is taken
        if not is_news:
            return False
        found.items += 1
        found.size += size
        return True

    def is_current(self, key: K, number: int) -> bool:
        """Return whether queued items of a fetch should still be delivered."""
        return number >= self._ranges[key].first

    def on_taken(self, key: K, number: int, size: int) -> None:
        """Record that the consumer has taken a queued item."""
        found = self._ranges[key]
        if number >= found.first:
            found.items -= 1
            found.size -= size

    def range_position(self, key: K) -> int:
        """Return the offset up to which a range was received."""
        return self._ranges[key].core.position

    def on_ended(self, call: int) -> None:
        """Record that all fetches of a call were answered."""
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
        """Record that a fetch failed. ``at_follower``: before it reached a follower."""
        fetch = self._fetches.get(number)
        if fetch is None:
            return
        found = self._settle(number)
        assert found is not None
        found.core.at_follower |= at_follower
        try:
            left = found.core.on_failed(error, now)
        except IsologError as lasting:
            self._ready.pop(fetch.key)
            self.out.append(RangeOver(number, fetch.key, lasting))
            return
        if left is not None:
            found.items += 1
            self.out.append(RangeMoved(number, fetch.key, left))

    def overdue(self, now: float) -> list[int]:
        """Return the calls that were silent for too long. The shell reports them as lost.

        A call may be silent while the consumer has not taken its items.
        """
        found = []
        for number, call in list(self._calls.items()):
            if call.heard_at + self._silence_s > now:
                break
            if any(self._ranges[self._fetches[each].key].items for each in call.numbers):
                self._record_answer(number, now)
            else:
                found.append(number)
        return found

    def give_up(self, key: K) -> int | None:
        """Stop reading a range. Drop its received items.

        Return the call to cancel, or None.
        """
        found = self._ranges[key]
        given_up = None
        if found.fetch is not None:
            call = self._fetches[found.fetch].call
            self._settle(found.fetch)
            if call is not None and not self._calls[call].numbers:
                del self._calls[call]
                given_up = call
        self._pausing.pop(key, None)
        self._ready.pop(key, None)
        found.first = found.last = self._numbers + 1
        found.items = found.size = 0
        return given_up

    def go_back(self, key: K, offset: int, lineage: Lineage) -> int | None:
        """Read a range again from this offset, because later received items cannot be delivered.

        Return the call to cancel, or None.
        """
        given_up = self.give_up(key)
        self._ranges[key].core.return_to(offset, lineage)
        self._ready[key] = None
        return given_up

    def _end_first(self) -> None:
        """End the fetch of the first range if it has its last answer and its call continues."""
        number = None if self.first is None else self._ranges[self.first].fetch
        if number is None or not (fetch := self._fetches[number]).is_answered:
            return
        assert fetch.call is not None
        # The last one in a call is settled by the end of the call, which needs no credit.
        if len(self._calls[fetch.call].numbers) > 1:
            settled = self._settle(number)
            assert settled is not None
            settled.core.on_ended()

    def _has_room(self, found: _Range[K]) -> bool:
        return found.items < AHEAD_ITEMS and found.size < self._ahead_bytes

    def _record_answer(self, call: int | None, now: float) -> None:
        if call is not None:
            known = self._calls.pop(call)
            known.heard_at = now
            self._calls[call] = known

    def _over(self, call: int) -> list[int]:
        known = self._calls.pop(call, None)
        return [] if known is None else sorted(known.numbers)

    def _settle(self, number: int) -> _Range[K] | None:
        """End a fetch. Its range is ready for another one."""
        fetch = self._fetches.pop(number, None)
        if fetch is None:
            return None
        if fetch.call is not None and fetch.call in self._calls:
            self._calls[fetch.call].numbers.discard(number)
        found = self._ranges[fetch.key]
        found.fetch = None
        self._ready[fetch.key] = None
        return found
