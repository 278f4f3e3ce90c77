"""Decides how to read a range of a partition: no I/O, no threads, no clock.

A shell carries out what :meth:`RangeCore.next` says, and reports the result.

Two causes remove records from a log: retention at its start, and a failover that cuts off records
which were not replicated. A reader of such records gets an error. With ``on_loss="continue"`` it
logs a warning and continues with the rest.
"""

from __future__ import annotations

from typing import Final

from msgspec import Struct

from spark_stream.consistency.replication.epochs import NOTHING_KNOWN, Lineage
from spark_stream.errors import (
    DataLoss,
    InvalidOption,
    IsologError,
    OffsetEvicted,
    RequestTimeout,
)
from spark_stream.loggers import logger_of

logger = logger_of(__name__)

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
        lineage: Lineage = NOTHING_KNOWN,
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
            self.lineage = NOTHING_KNOWN
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
