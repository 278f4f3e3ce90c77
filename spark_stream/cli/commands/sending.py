"""Send records of an input to a topic: up to the first that is refused, or all or none."""

from __future__ import annotations

import os
import select
import signal
import sys
from collections import deque
from concurrent.futures import Future
from contextlib import suppress
from typing import Final, Self

from msgspec import Struct

from spark_stream.cli.input.fitting import Fitting
from spark_stream.cli.input.formats import TEXT, Reading, records
from spark_stream.cli.input.placing import Placing
from spark_stream.cli.options import counted, note
from spark_stream.cli.progress import bar
from spark_stream.client.log import Log
from spark_stream.client.values import Written
from spark_stream.client.writing.producer import Producer
from spark_stream.errors import (
    ForeignBranch,
    InvalidTransaction,
    IsologError,
    ProducerFenced,
    TransactionAborted,
    UnknownTransaction,
)
from spark_stream.wire.topic_messages import TopicDescription

_LOOK_S: Final = 0.2  # how often to check for signals while waiting for the broker
_BYTES: Final = 4096
_NOT_COMMITTED: Final = (
    TransactionAborted,
    ProducerFenced,
    UnknownTransaction,
    InvalidTransaction,
    ForeignBranch,
)
"""Errors of a commit that leave nothing of it visible; after other errors it may be visible."""


class Work(Struct, frozen=True):
    """An input, and where its records go."""

    log: Log
    topic: TopicDescription
    reading: Reading
    fittings: list[Fitting]
    placing: Placing
    key: tuple[str, ...]
    isolation: str

    def write(self) -> None:
        """Write all records; if one is refused, those before it stay."""
        producer = self.log.producer(isolation=self.isolation)
        self._greet("Ctrl-D ends")
        sent = _Sent()
        try:
            with self._interrupts(signal.SIGINT) as interrupts, producer:
                self._copy(producer, sent, interrupts)
        finally:
            note(f"{counted(sent.records, 'record')} to {self.topic.name}")

    def write_all_or_nothing(self, transactional_id: str, timeout_ms: int) -> None:
        """Write all records in one transaction; any error or signal aborts it."""
        self._greet("Ctrl-D commits, Ctrl-C aborts")
        sent = _Sent()
        name = self.topic.name
        deciding = False
        producer = self.log.producer(
            isolation=self.isolation,
            transactional_id=transactional_id,
            transaction_timeout_ms=timeout_ms,
        )
        try:
            with (
                self._interrupts(signal.SIGINT, signal.SIGTERM, signal.SIGHUP) as interrupts,
                producer,
                producer.transaction(),
            ):
                self._copy(producer, sent, interrupts)
                deciding = True
        except BaseException as error:
            if deciding and not isinstance(error, _NOT_COMMITTED):
                note(f"`isolog transactions describe {transactional_id}` tells what became of it")
            else:
                note(f"0 records to {name}: the transaction was not committed")
            raise
        note(f"{counted(sent.records, 'record')} to {name}, in one transaction")

    def _greet(self, ends: str) -> None:
        if self.reading.file is None and sys.stdin.isatty():
            note(f"{self.reading.format} to {self.topic.name}, {ends}:")

    def _interrupts(self, *signals: signal.Signals) -> Interrupts:
        # Arrow reads its own formats without a point at which signals could be checked.
        return Interrupts(*signals, at_once=self.reading.format not in TEXT)

    def _copy(self, producer: Producer, sent: _Sent, interrupts: Interrupts) -> None:
        name = self.topic.name
        first = 1
        part: float | None = None

        def moved(done: float | None) -> None:
            nonlocal part
            part = done

        def idle(number: int | None) -> None:
            _flush(producer, interrupts)
            interrupts.wait(number)

        typed = self.reading.file is None and sys.stdin.isatty()
        with bar(f"to {name}", screen_is_free=not typed) as shown:
            for batch in records(self.reading, idle, moved):
                interrupts.check()
                rows = batch.num_rows
                batch, places = self.placing.parted(batch, first)
                for fitting in self.fittings:
                    batch = fitting.fit(batch, first)
                for partition, piece in self.placing.split(batch, places):
                    sent.append(producer.append(name, piece, partition, self.key))
                first += rows
                shown.advance(rows, part)
            _flush(producer, interrupts)


def _flush(producer: Producer, interrupts: Interrupts) -> None:
    """Wait until all that was sent is acknowledged or has failed."""
    while True:
        interrupts.check()
        with suppress(TimeoutError):
            producer.flush(_LOOK_S)
            return


class Interrupts:
    """Signals that end the command, as exceptions that come where no lock is held.

    A handler that raises may do so just after a lock was taken, before the block that releases it:
    the next thread that takes it waits for ever. So a handler only stores the signal; :meth:`check`
    and :meth:`wait` raise. A second signal raises at once: the command may be stuck.
    """

    def __init__(self, *signals: signal.Signals, at_once: bool) -> None:
        """Handle signals. ``at_once``: raise at once, as the input is read without :meth:`wait`."""
        self._signals = signals
        self._at_once = at_once
        self._found: int | None = None

    def __enter__(self) -> Self:
        usual = (signal.SIG_DFL, signal.default_int_handler)
        found = {each: signal.getsignal(each) for each in self._signals}
        self._before = {each: how for each, how in found.items() if how in usual}  # keep nohup's
        # A signal just before select() begins does not interrupt it; this byte does.
        self._woken, self._wake = os.pipe()
        os.set_blocking(self._woken, False)
        os.set_blocking(self._wake, False)
        self._wake_before = signal.set_wakeup_fd(self._wake, warn_on_full_buffer=False)
        for each in self._before:
            signal.signal(each, self._take)
        return self

    def __exit__(self, *_: object) -> None:
        for each, how in self._before.items():
            signal.signal(each, how)
        signal.set_wakeup_fd(self._wake_before)
        os.close(self._woken)
        os.close(self._wake)

    def check(self) -> None:
        """Raise KeyboardInterrupt or SystemExit if a signal has come."""
        if self._found == signal.SIGINT:
            raise KeyboardInterrupt
        if self._found is not None:
            raise SystemExit(128 + self._found)

    def wait(self, number: int | None) -> None:
        """Wait until this descriptor has something to read; raise as :meth:`check` does."""
        self.check()
        while number is not None and number not in select.select([number, self._woken], [], [])[0]:
            with suppress(BlockingIOError):
                os.read(self._woken, _BYTES)
            self.check()

    def _take(self, number: int, _: object) -> None:
        stuck, self._found = self._found is not None, number
        if stuck or self._at_once:
            self.check()


class _Sent:
    """Counts acknowledged records, and stops the reading once some were refused."""

    def __init__(self) -> None:
        self._waiting: deque[Future[Written]] = deque()
        self._records = 0

    def append(self, future: Future[Written]) -> None:
        """Add a batch that was sent; raise the error of an earlier one."""
        self._waiting.append(future)
        while self._waiting and self._waiting[0].done():
            self._count(self._waiting[0].exception())

    @property
    def records(self) -> int:
        """How many records are in the log. Waits until all batches are settled."""
        for future in list(self._waiting):
            with suppress(IsologError):
                self._count(future.exception())
        return self._records

    def _count(self, error: BaseException | None) -> None:
        future = self._waiting.popleft()
        if error is None:
            self._records += future.result().count
            return
        self._records += error.kept if isinstance(error, IsologError) else 0
        raise error
