"""Records of an input to a topic: those that the leader takes, or all of them or none."""

from __future__ import annotations

import signal
import sys
from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Final

from spark_stream.cli.input.fitting import Fitting
from spark_stream.cli.input.formats import Reading, records
from spark_stream.cli.input.placing import Placing
from spark_stream.cli.options import counted, note
from spark_stream.cli.progress import bar
from spark_stream.client.log import Log
from spark_stream.client.values import TopicDescription, Written
from spark_stream.client.writing.producer import Producer
from spark_stream.errors import (
    ForeignBranch,
    InvalidTransaction,
    IsologError,
    ProducerFenced,
    TransactionAborted,
    UnknownTransaction,
)

_NOT_COMMITTED: Final = (
    TransactionAborted,
    ProducerFenced,
    UnknownTransaction,
    InvalidTransaction,
    ForeignBranch,
)
"""The errors of a commit after which nothing of it is visible; after others it may be."""


@dataclass(frozen=True, slots=True)
class Work:
    """An input, and where its records go."""

    log: Log
    topic: TopicDescription
    reading: Reading
    fittings: list[Fitting]
    placing: Placing
    key: tuple[str, ...]
    isolation: str

    def write(self) -> None:
        """Writes all records; those before one that is refused stay."""
        producer = self.log.producer(isolation=self.isolation)
        self._greet("Ctrl-D ends")
        sent = _Sent()
        try:
            with producer:
                self._copy(producer, sent)
        finally:
            note(f"{counted(sent.records, 'record')} to {self.topic.name}")

    def write_all_or_nothing(self, transactional_id: str, timeout_ms: int) -> None:
        """Writes all records in one transaction, which any error, or signal, aborts."""
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
            with _ended_by_signals(), producer, producer.transaction():
                self._copy(producer, sent)
                producer.flush()
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

    def _copy(self, producer: Producer, sent: _Sent) -> None:
        name = self.topic.name
        first = 1
        part: float | None = None

        def moved(done: float | None) -> None:
            nonlocal part
            part = done

        typed = self.reading.file is None and sys.stdin.isatty()
        with bar(f"to {name}", screen_is_free=not typed) as shown:
            for batch in records(self.reading, producer.flush, moved):
                rows = batch.num_rows
                batch, places = self.placing.parted(batch, first)
                for fitting in self.fittings:
                    batch = fitting.fit(batch, first)
                for partition, piece in self.placing.split(batch, places):
                    sent.append(producer.append(name, piece, partition, self.key))
                first += rows
                shown.advance(rows, part)


@contextmanager
def _ended_by_signals() -> Iterator[None]:
    """Inside, SIGTERM and SIGHUP raise an exception, as Ctrl-C does."""

    def end(number: int, _: object) -> None:
        raise SystemExit(128 + number)

    taken = [
        each
        for each in (signal.SIGTERM, signal.SIGHUP)
        if signal.getsignal(each) is signal.SIG_DFL  # nohup's are not ours
    ]
    for each in taken:
        signal.signal(each, end)
    try:
        yield
    finally:
        for each in taken:
            signal.signal(each, signal.SIG_DFL)


class _Sent:
    """Counts what was acknowledged, and stops the reading of more once something was refused."""

    def __init__(self) -> None:
        self._waiting: deque[Future[Written]] = deque()
        self._records = 0

    def append(self, future: Future[Written]) -> None:
        """Takes note of a batch; raises the error of an earlier one."""
        self._waiting.append(future)
        while self._waiting and self._waiting[0].done():
            self._count(self._waiting[0].exception())

    @property
    def records(self) -> int:
        """How many records are in the log. Waits until that is known."""
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
