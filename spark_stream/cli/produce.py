"""``isolog produce``: records of standard input or of a file into a topic."""

from __future__ import annotations

import dataclasses
import signal
import sys
import uuid
from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import pyarrow as pa
import typer

from spark_stream.cli.ddl import parse_schema
from spark_stream.cli.fitting import Fitting
from spark_stream.cli.inputs import TEXT, Format, Reading, format_of, records, schema_of_file
from spark_stream.cli.options import Bootstrap, LogPath, Topic, log, note
from spark_stream.client.log import Log
from spark_stream.client.producer import Producer
from spark_stream.client.values import TopicDescription, Written
from spark_stream.consistency.isolation import PRODUCER_LEVELS
from spark_stream.errors import (
    ForeignBranch,
    InvalidOption,
    InvalidTransaction,
    IsologError,
    ProducerFenced,
    TransactionAborted,
    UnknownTopic,
    UnknownTransaction,
)
from spark_stream.wire.limits import TRANSACTION_TIMEOUT_MS_MAX
from spark_stream.wire.schemas import is_default

_INPUT = "The input"
_TRANSACTION = "A transaction"
_NOT_COMMITTED = (
    TransactionAborted,
    ProducerFenced,
    UnknownTransaction,
    InvalidTransaction,
    ForeignBranch,
)
"""The errors of a commit after which nothing of it is visible; after others it may be."""


def produce(
    topic: Topic,
    bootstrap: Bootstrap = None,
    path: LogPath = None,
    file: Annotated[
        Path | None,
        typer.Option(
            "--file",
            "-f",
            metavar="FILE",
            help="Read it instead of standard input.",
            exists=True,
            dir_okay=False,
            show_default=False,
            rich_help_panel=_INPUT,
        ),
    ] = None,
    format_: Annotated[
        Format | None,
        typer.Option(
            "--format",
            help="What the input is. Default: what the extension says, else lines.",
            show_default=False,
            rich_help_panel=_INPUT,
        ),
    ] = None,
    key_separator: Annotated[
        str | None,
        typer.Option(
            metavar="TEXT",
            help="In lines: the key is what is before it.",
            show_default=False,
            rich_help_panel=_INPUT,
        ),
    ] = None,
    schema: Annotated[
        str | None,
        typer.Option(
            metavar="SCHEMA",
            help="The input's columns, such as \"id bigint, name string\"; default: the topic's.",
            show_default=False,
            rich_help_panel=_INPUT,
        ),
    ] = None,
    delimiter: Annotated[
        str | None,
        typer.Option(
            metavar="CHAR",
            help="Between fields of CSV. Default: a comma, in .tsv files a tab.",
            show_default=False,
            rich_help_panel=_INPUT,
        ),
    ] = None,
    header: Annotated[
        bool,
        typer.Option(
            "--header/--no-header",
            help="CSV has its columns' names in the first line.",
            rich_help_panel=_INPUT,
        ),
    ] = True,
    null: Annotated[
        list[str] | None,
        typer.Option(
            metavar="TEXT",
            help="In CSV: a spelling of null beside the empty field, such as NA; repeatable.",
            rich_help_panel=_INPUT,
        ),
    ] = None,
    partition: Annotated[
        int | None,
        typer.Option(
            metavar="N",
            min=0,
            help="Write to this partition. Default: by the key, else in turn.",
            show_default=False,
        ),
    ] = None,
    isolation: Annotated[
        str,
        typer.Option(
            metavar="LEVEL", help=f"When a record is acknowledged: {' | '.join(PRODUCER_LEVELS)}."
        ),
    ] = "read_uncommitted",
    transactional: Annotated[
        bool,
        typer.Option(
            "--transactional",
            help="All records or none: committed at the end of the input, aborted on any error.",
            rich_help_panel=_TRANSACTION,
        ),
    ] = False,
    transactional_id: Annotated[
        str | None,
        typer.Option(
            metavar="ID",
            help="The identity; whoever takes it over fences who had it. Default: a new one.",
            show_default=False,
            rich_help_panel=_TRANSACTION,
        ),
    ] = None,
    transaction_timeout: Annotated[
        float,
        typer.Option(
            metavar="SECONDS",
            min=0.001,
            max=TRANSACTION_TIMEOUT_MS_MAX / 1000,
            help="The broker aborts what is open for longer.",
            rich_help_panel=_TRANSACTION,
        ),
    ] = 900.0,
    create: Annotated[
        bool,
        typer.Option(
            "--create", help="Make the topic if there is none, with --schema or the file's."
        ),
    ] = False,
) -> None:
    """Writes records to a topic: lines, or the rows of CSV, JSON lines, Parquet or Arrow.

    Columns are cast to the topic's types; what does not fit is refused, and the column named.
    In CSV and JSON a moment without a zone is UTC, and binary is base64.

    \b
    echo hello | isolog produce greetings --path data/
    isolog produce greetings --key-separator : < pairs.txt
    isolog produce flights --file flights.csv.gz --null NA --create
    isolog produce flights --file flights.parquet --transactional
    tail -F app.jsonl | isolog produce events --format json
    """
    if transactional_id is not None and not transactional:
        raise InvalidOption(
            "--transactional-id is for a transaction", hint="Give --transactional as well."
        )
    identity = (transactional_id or f"produce/{uuid.uuid4()}") if transactional else None
    if delimiter is not None and len(delimiter) != 1:
        raise InvalidOption("--delimiter takes one character", hint="Such as --delimiter ';'.")
    if key_separator == "":
        raise InvalidOption("--key-separator is empty", hint="Such as --key-separator :.")
    columns = None if schema is None else parse_schema(schema)
    with log(bootstrap, path, makes=create) as opened:
        known = _described(opened, topic, create)
        reading = Reading(
            format=_format(known, topic, file, format_, columns),
            file=file,
            columns=columns,
            key_separator=key_separator,
            headed=header,
            delimiter=delimiter,
            nulls=null or [],
        )
        _check(reading)
        if known is None:
            known = opened.create_topic(topic, schema=_new_schema(reading))
            note(f"created topic {topic}")
        work = _Work(opened, known, _by_columns(reading, known), isolation, partition)
        if identity is None:
            work.write()
        else:
            work.write_all_or_nothing(identity, round(transaction_timeout * 1000))


def _described(opened: Log, topic: str, create: bool) -> TopicDescription | None:
    """The topic; None if it is to be made."""
    try:
        return opened.describe(topic)
    except UnknownTopic:
        if not create:
            raise
        return None


def _format(
    known: TopicDescription | None,
    topic: str,
    file: Path | None,
    given: Format | None,
    columns: pa.Schema | None,
) -> Format:
    """The input's format. Text for a default-schema topic is lines unless told otherwise."""
    found = given or format_of(file)
    typed = columns is not None if known is None else not is_default(known.schema)
    if found is None and typed:
        raise InvalidOption(
            f"topic {topic!r} has columns of its own: which format is the input?",
            hint="Give --format csv, json, parquet or arrow.",
        )
    if found is Format.LINES and typed:
        raise InvalidOption(
            f"lines cannot go to topic {topic!r}, which has columns of its own",
            hint="Give --format csv or json.",
        )
    if found is None or (given is None and known is not None and not typed and found in TEXT):
        return Format.LINES
    return found


def _check(reading: Reading) -> None:
    if reading.format is not Format.LINES and reading.key_separator is not None:
        raise InvalidOption(
            f"--key-separator is for lines, the input is {reading.format}",
            hint="A column `key` has the keys.",
        )
    if reading.format is Format.LINES and reading.columns is not None:
        raise InvalidOption("--schema is not for lines", hint="Give --format csv or json.")
    if reading.format is Format.PARQUET and reading.file is None:
        raise InvalidOption("Parquet cannot be read from a pipe", hint="Give --file FILE.")


def _new_schema(reading: Reading) -> pa.Schema | None:
    """The schema of a topic that is made for this input; None is the default one."""
    if reading.columns is not None or reading.format is Format.LINES:
        return reading.columns
    if reading.file is None:
        raise InvalidOption(
            f"--create does not know the columns of {reading.format} from standard input",
            hint='Give --schema, such as --schema "id bigint, name string".',
        )
    return schema_of_file(reading.file, reading.format, reading)


def _by_columns(reading: Reading, known: TopicDescription) -> Reading:
    """The input is read by the topic's columns, unless --schema names others."""
    return reading if reading.columns else dataclasses.replace(reading, columns=known.schema)


def _fittings(reading: Reading, known: TopicDescription) -> list[Fitting]:
    """What makes a batch of the input one of the topic, by way of --schema if that is given."""
    text = reading.format in TEXT
    if reading.columns is known.schema:
        return [Fitting.of_topic(known.schema, text)]
    return [Fitting.of_topic(reading.columns, text), Fitting.of_topic(known.schema, text=False)]


@dataclass(frozen=True, slots=True)
class _Work:
    """An input, and where its records go."""

    log: Log
    topic: TopicDescription
    reading: Reading
    isolation: str
    partition: int | None

    def write(self) -> None:
        """Writes all records; those before one that is refused stay."""
        self._greet("Ctrl-D ends")
        sent = _Sent()
        try:
            with self.log.producer(isolation=self.isolation) as producer:
                self._copy(producer, sent)
        finally:
            note(f"{sent.records} records to {self.topic.name}")

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
        note(f"{sent.records} records to {name}, in one transaction")

    def _greet(self, ends: str) -> None:
        if self.reading.file is None and sys.stdin.isatty():
            note(f"{self.reading.format} to {self.topic.name}, {ends}:")

    def _copy(self, producer: Producer, sent: _Sent) -> None:
        fittings = _fittings(self.reading, self.topic)
        first = 1
        for batch in records(self.reading, idle=producer.flush):
            rows = batch.num_rows
            for fitting in fittings:
                batch = fitting.fit(batch, first)
            sent.append(producer.append(self.topic.name, batch, self.partition))
            first += rows


@contextmanager
def _ended_by_signals() -> Iterator[None]:
    """SIGTERM and SIGHUP end what is done within as Ctrl-C does: by an exception."""

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
