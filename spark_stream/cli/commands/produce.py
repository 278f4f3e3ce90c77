"""``isolog produce``: write records of standard input or of a file to a topic.

Records are written up to the first invalid record. In a transaction all are written, or none.
"""

from __future__ import annotations

import signal
import string
import sys
import uuid
from collections import deque
from concurrent.futures import Future
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer
from msgspec import Struct, structs

from spark_stream.cli.options import (
    TEXT,
    Bootstrap,
    Format,
    LogPath,
    Topic,
    counted,
    log,
    note,
    note_warning,
)
from spark_stream.cli.terminal import Interrupts, bar
from spark_stream.consistency.isolation import PRODUCER_LEVELS
from spark_stream.errors import (
    ForeignBranch,
    InvalidOption,
    InvalidTransaction,
    IsologError,
    ProducerFenced,
    TransactionAborted,
    UnknownPartition,
    UnknownTopic,
    UnknownTransaction,
)
from spark_stream.operating_system import HANG_UP
from spark_stream.wire.limits import TRANSACTION_TIMEOUT_MS_MAX

if TYPE_CHECKING:
    import pyarrow as pa

    from spark_stream.cli.input.formats import Reading
    from spark_stream.cli.input.placing import Placing
    from spark_stream.client.log import Log
    from spark_stream.client.values import Written
    from spark_stream.client.writing.producer import Producer
    from spark_stream.schema.fitting import Fitting
    from spark_stream.wire.topic_messages import TopicDescription

_INPUT = "The input"
_TRANSACTION = "A transaction"
_DELIMITERS = set(string.punctuation + " \t") - {'"'}
_LOOK_S: Final = 0.2  # how often to check for signals while waiting for the broker
_NOT_COMMITTED: Final = (
    TransactionAborted,
    ProducerFenced,
    UnknownTransaction,
    InvalidTransaction,
    ForeignBranch,
)
"""Errors that mean that the commit failed. After other errors its result is unknown."""


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
            help="Read this file instead of standard input.",
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
            help="Format of the input. Default: by the file extension, else lines.",
            show_default=False,
            rich_help_panel=_INPUT,
        ),
    ] = None,
    key_separator: Annotated[
        str | None,
        typer.Option(
            metavar="TEXT",
            help="In lines: the text before the first separator is the key. Lines without it fail.",
            show_default=False,
            rich_help_panel=_INPUT,
        ),
    ] = None,
    schema: Annotated[
        str | None,
        typer.Option(
            metavar="SCHEMA",
            help='Columns of the input, such as "id bigint, name string". Default: the topic\'s.',
            show_default=False,
            rich_help_panel=_INPUT,
        ),
    ] = None,
    delimiter: Annotated[
        str | None,
        typer.Option(
            metavar="CHAR",
            help="Delimiter of fields in CSV. Default: a comma, in .tsv files a tab.",
            show_default=False,
            rich_help_panel=_INPUT,
        ),
    ] = None,
    header: Annotated[
        bool,
        typer.Option(
            "--header/--no-header",
            help="The first line of CSV has the names of the columns.",
            rich_help_panel=_INPUT,
        ),
    ] = True,
    null: Annotated[
        list[str] | None,
        typer.Option(
            metavar="TEXT",
            help="In CSV: another spelling of null besides the empty field, such as NA. Repeatable."
            " An empty text in quotes is then null too, except in columns of text.",
            rich_help_panel=_INPUT,
        ),
    ] = None,
    partition: Annotated[
        int | None,
        typer.Option(
            metavar="N",
            min=0,
            help="Write to this partition. Default: by the key, else round-robin.",
            show_default=False,
        ),
    ] = None,
    partition_by: Annotated[
        str | None,
        typer.Option(
            metavar="COLUMNS",
            help="Typed topics: partition records by these columns, separated by commas. Default:"
            " the topic's partition.by. With --create it is stored as partition.by.",
            show_default=False,
        ),
    ] = None,
    isolation: Annotated[
        str,
        typer.Option(
            metavar="LEVEL", help=f"Level of acknowledgements: {' | '.join(PRODUCER_LEVELS)}."
        ),
    ] = "read_uncommitted",
    transactional: Annotated[
        bool,
        typer.Option(
            "--transactional",
            help="Write all records or none: commit at the end of the input, abort on errors.",
            rich_help_panel=_TRANSACTION,
        ),
    ] = False,
    transactional_id: Annotated[
        str | None,
        typer.Option(
            metavar="ID",
            help="The transactional id. A new producer with it fences the old. Default: a new id.",
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
            help="The broker aborts the transaction if it is open for longer.",
            rich_help_panel=_TRANSACTION,
        ),
    ] = 900.0,
    create: Annotated[
        bool,
        typer.Option(
            "--create", help="Create a missing topic, with --schema or the columns of the file."
        ),
    ] = False,
) -> None:
    """Write records to a topic from lines, CSV, JSON lines, Parquet or Arrow.

    Columns are cast to the topic's types. An error names the column of a value that does not fit.
    In CSV and JSON a timestamp without a zone is UTC, binary is base64, and nullable columns may be
    missing. The output of `consume -o json` gives the same records. Of its metadata only the
    partition is used, unless --partition is given.

    \b
    echo hello | isolog produce greetings --path data/
    isolog produce greetings --key-separator : < pairs.txt
    isolog produce flights --file flights.csv.gz --null NA --create
    isolog produce flights --file flights.parquet --transactional
    tail -F app.jsonl | isolog produce events --format json
    """
    from spark_stream.cli.input.formats import Reading
    from spark_stream.cli.input.placing import Placing
    from spark_stream.schema.keys import PARTITION_BY, key_columns, split_names
    from spark_stream.schema.schemas import of_topic
    from spark_stream.sql.ddl import parse_schema

    if transactional_id is not None and not transactional:
        raise InvalidOption(
            "--transactional-id needs --transactional", hint="Give both, or neither."
        )
    identity = transactional_id
    if transactional and identity is None:
        identity = f"produce/{uuid.uuid4()}"
    if delimiter is not None and (len(delimiter) != 1 or delimiter not in _DELIMITERS):
        raise InvalidOption(
            f"--delimiter takes one character, no letter, digit or quote, not {delimiter!r}",
            hint="Example: --delimiter ';'.",
        )
    if key_separator == "":
        raise InvalidOption("--key-separator is empty", hint="Example: --key-separator :.")
    columns = None if schema is None else parse_schema(schema)
    key = split_names(partition_by or "")
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
        _check_partition(topic, partition, 1 if known is None else len(known.partitions))
        if known is None:
            columns = _new_schema(reading)
            _rehearse(reading, columns)
            config = {PARTITION_BY: ",".join(key)} if key else {}
            known = opened.create_topic(topic, schema=columns, config=config)
            note(f"created topic {topic}")
            note_warning(known)
        with of_topic(topic):
            key_columns(known.schema, known.partition_by, key)
        reading = _by_columns(reading, known)
        job = ProduceJob(
            opened,
            known,
            reading,
            _fittings(reading, known),
            Placing(known, partition, reading.format in TEXT),
            key,
            isolation,
        )
        if identity is None:
            job.write()
        else:
            job.write_all_or_nothing(identity, round(transaction_timeout * 1000))


def _described(opened: Log, topic: str, create: bool) -> TopicDescription | None:
    """Return the topic, or None if it does not exist and ``create`` is set."""
    try:
        return opened.describe(topic)
    except UnknownTopic as error:
        if not create:
            raise UnknownTopic(
                error.message,
                hint="Give --create, or create it with `isolog topic create`.",
                **error.details,
            ) from None
        return None


def _format(
    known: TopicDescription | None,
    topic: str,
    file: Path | None,
    given: Format | None,
    columns: pa.Schema | None,
) -> Format:
    """Return the input's format. Text for a default-schema topic is lines unless it is given."""
    from spark_stream.cli.input.formats import format_of
    from spark_stream.schema.schemas import is_default

    found = given or format_of(file)
    typed = columns is not None if known is None else not is_default(known.schema)
    if found is None and typed:
        raise InvalidOption(
            f"the format of the input is unknown, and topic {topic!r} is typed",
            hint="Give --format csv, json, parquet or arrow.",
        )
    if found is Format.LINES and typed:
        raise InvalidOption(
            f"lines cannot be written to topic {topic!r}, which is typed",
            hint="Give --format csv or json.",
        )
    if found is None or (given is None and known is not None and not typed and found in TEXT):
        return Format.LINES
    return found


def _check_partition(topic: str, partition: int | None, count: int) -> None:
    """Raise UnknownPartition if the topic lacks the partition, before any input is read."""
    if partition is not None and partition >= count:
        has = "only partition 0" if count == 1 else f"partitions 0 to {count - 1}"
        raise UnknownPartition(
            f"--partition {partition}: topic {topic!r} has {has}",
            hint="Leave --partition out, or add partitions with `isolog topic alter`.",
            topic=topic,
            partition=partition,
        )


def _check(reading: Reading) -> None:
    if reading.format is not Format.LINES and reading.key_separator is not None:
        raise InvalidOption(
            f"--key-separator is for lines, and the input is {reading.format}",
            hint="Give the keys in a column `key`.",
        )
    if reading.format is Format.LINES and reading.columns is not None:
        raise InvalidOption("--schema cannot be used with lines", hint="Give --format csv or json.")
    if reading.format is Format.PARQUET and reading.file is None:
        raise InvalidOption("Parquet cannot be read from a pipe", hint="Give --file FILE.")


def _new_schema(reading: Reading) -> pa.Schema | None:
    """Return the schema of a new topic for this input, None for the default schema."""
    from spark_stream.cli.input.formats import schema_of_file

    if reading.columns is not None or reading.format is Format.LINES:
        return reading.columns
    if not reading.headed:
        raise InvalidOption(
            "--create with --no-header needs the names of the columns",
            hint='Give --schema, such as --schema "id bigint, name string".',
        )
    if reading.file is None:
        raise InvalidOption(
            f"--create needs the columns of {reading.format} from standard input",
            hint='Give --schema, such as --schema "id bigint, name string".',
        )
    return schema_of_file(reading.file, reading.format, reading)


def _rehearse(reading: Reading, columns: pa.Schema | None) -> None:
    """Read the first block of a text file as a check, before its topic is created.

    Raises:
        InvalidRecord, SchemaMismatch: a record in it does not fit.
    """
    from spark_stream.cli.input.formats import ignore, records
    from spark_stream.cli.input.placing import metadata_of
    from spark_stream.schema.fitting import Fitting

    if columns is None or reading.file is None or reading.format not in TEXT:
        return
    metadata = metadata_of(columns)
    reading = structs.replace(reading, columns=columns, metadata=metadata, quiet=True)
    for batch in records(reading, ignore):
        dropped = [name for name in batch.schema.names if name in metadata.names]
        Fitting.of_topic(columns, text=True).fit(batch.drop_columns(dropped), 1)
        break


def _by_columns(reading: Reading, known: TopicDescription) -> Reading:
    """Return the reading with the topic's columns, unless --schema gives others."""
    from spark_stream.cli.input.placing import metadata_of
    from spark_stream.schema.schemas import is_default

    return structs.replace(
        reading,
        columns=reading.columns or known.schema,
        metadata=metadata_of(known.schema),
        utf8=is_default(known.schema),
    )


def _fittings(reading: Reading, known: TopicDescription) -> list[Fitting]:
    """Return the conversions from the input's batches to the topic's, through --schema if given."""
    from spark_stream.cli.input.placing import stored_columns
    from spark_stream.schema.fitting import Fitting

    text = reading.format in TEXT
    if reading.columns is None or reading.columns is known.schema:
        return [Fitting.of_topic(known.schema, text)]
    named = stored_columns(reading.columns, known.schema)
    return [Fitting.of_topic(named, text), Fitting.of_topic(known.schema, text=False)]


class ProduceJob(Struct, frozen=True):
    """An input and the topic for its records."""

    log: Log
    topic: TopicDescription
    reading: Reading
    fittings: list[Fitting]
    placing: Placing
    key: tuple[str, ...]
    isolation: str

    def write(self) -> None:
        """Write all records. If one is invalid, the records before it stay."""
        producer = self.log.producer(isolation=self.isolation)
        self._greet("Ctrl-D ends")
        sent = _Sent()
        try:
            with self._interrupts(signal.SIGINT) as interrupts, producer:
                self._copy(producer, sent, interrupts)
        finally:
            note(f"{counted(sent.records, 'record')} to {self.topic.name}")

    def write_all_or_nothing(self, transactional_id: str, timeout_ms: int) -> None:
        """Write all records in one transaction. Any error or signal aborts it."""
        self._greet("Ctrl-D commits, Ctrl-C aborts")
        sent = _Sent()
        name = self.topic.name
        is_committing = False
        producer = self.log.producer(
            isolation=self.isolation,
            transactional_id=transactional_id,
            transaction_timeout_ms=timeout_ms,
        )
        try:
            with (
                self._interrupts(signal.SIGINT, signal.SIGTERM, HANG_UP) as interrupts,
                producer,
                producer.transaction(),
            ):
                self._copy(producer, sent, interrupts)
                is_committing = True
        except BaseException as error:
            if is_committing and not isinstance(error, _NOT_COMMITTED):
                note(
                    "the result of the commit is unknown:"
                    f" see `isolog transactions describe {transactional_id}`"
                )
            else:
                note(f"0 records to {name}: the transaction was not committed")
            raise
        note(f"{counted(sent.records, 'record')} to {name}, in one transaction")

    def _greet(self, ends: str) -> None:
        if self.reading.file is None and sys.stdin.isatty():
            note(f"{self.reading.format} to {self.topic.name}, {ends}:")

    def _interrupts(self, *signals: signal.Signals) -> Interrupts:
        # Arrow's readers of Arrow and Parquet have no point at which signals could be checked.
        return Interrupts(*signals, at_once=self.reading.format not in TEXT)

    def _copy(self, producer: Producer, sent: _Sent, interrupts: Interrupts) -> None:
        from spark_stream.cli.input.formats import records

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
                batch, places = self.placing.separate(batch, first)
                for fitting in self.fittings:
                    batch = fitting.fit(batch, first)
                for partition, piece in self.placing.split(batch, places):
                    sent.append(producer.append(name, piece, partition, self.key))
                first += rows
                shown.advance(rows, part)
            _flush(producer, interrupts)


def _flush(producer: Producer, interrupts: Interrupts) -> None:
    """Wait until all batches are acknowledged or have failed."""
    while True:
        interrupts.check()
        with suppress(TimeoutError):
            producer.flush(_LOOK_S)
            return


class _Sent:
    """A count of acknowledged records, which raises the error of the first failed batch."""

    def __init__(self) -> None:
        self._waiting: deque[Future[Written]] = deque()
        self._records = 0

    def append(self, future: Future[Written]) -> None:
        """Add a batch that was sent. Raise the error of an earlier batch."""
        self._waiting.append(future)
        while self._waiting and self._waiting[0].done():
            self._count(self._waiting[0].exception())

    @property
    def records(self) -> int:
        """The number of records in the log, after all batches are settled."""
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
