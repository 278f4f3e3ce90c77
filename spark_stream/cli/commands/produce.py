"""``isolog produce``: write records of standard input or of a file to a topic."""

from __future__ import annotations

import string
import uuid
from pathlib import Path
from typing import Annotated

import pyarrow as pa
import typer
from msgspec import structs

from spark_stream.cli.commands.sending import Work
from spark_stream.cli.input.file_schemas import schema_of_file
from spark_stream.cli.input.fitting import Fitting
from spark_stream.cli.input.formats import TEXT, Format, Reading, format_of, records
from spark_stream.cli.input.placing import Placing, metadata_of, stored_columns
from spark_stream.cli.options import Bootstrap, LogPath, Topic, log, note, note_warning
from spark_stream.client.log import Log
from spark_stream.consistency.isolation import PRODUCER_LEVELS
from spark_stream.errors import InvalidOption, UnknownPartition, UnknownTopic
from spark_stream.schema.keys import PARTITION_BY, key_columns, split_names
from spark_stream.schema.schemas import is_default, of_topic
from spark_stream.sql.ddl import parse_schema
from spark_stream.wire.limits import TRANSACTION_TIMEOUT_MS_MAX
from spark_stream.wire.topic_messages import TopicDescription

_INPUT = "The input"
_TRANSACTION = "A transaction"
_DELIMITERS = set(string.punctuation + " \t") - {'"'}


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
            help="In lines: the key is what is before the first one; a line without is refused.",
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
            help="In CSV: a spelling of null beside the empty field, such as NA; repeatable. An"
            " empty text in quotes is then null too, except in columns of text.",
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
    partition_by: Annotated[
        str | None,
        typer.Option(
            metavar="COLUMNS",
            help="Of a typed topic: place records by these columns, with commas between. Default:"
            " the topic's partition.by. With --create it becomes the new topic's.",
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
            help="The identity; a newer producer with it fences the older. Default: a new one.",
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
    """Write records to a topic: lines, or the rows of CSV, JSON lines, Parquet or Arrow.

    Columns are cast to the topic's types; a value that does not fit is refused, and its column
    named. In CSV and JSON a moment without a zone is UTC, and binary is base64; columns that take
    nulls may be missing. The output of `consume -o json` is read back as the same records; of its
    metadata only the partition is used, unless --partition is given.

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
    identity = transactional_id
    if transactional and identity is None:
        identity = f"produce/{uuid.uuid4()}"
    if delimiter is not None and (len(delimiter) != 1 or delimiter not in _DELIMITERS):
        raise InvalidOption(
            f"--delimiter takes one character, no letter, digit or quote, not {delimiter!r}",
            hint="Such as --delimiter ';'.",
        )
    if key_separator == "":
        raise InvalidOption("--key-separator is empty", hint="Such as --key-separator :.")
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
        work = Work(
            opened,
            known,
            reading,
            _fittings(reading, known),
            Placing(known, partition, reading.format in TEXT),
            key,
            isolation,
        )
        if identity is None:
            work.write()
        else:
            work.write_all_or_nothing(identity, round(transaction_timeout * 1000))


def _described(opened: Log, topic: str, create: bool) -> TopicDescription | None:
    """Return the topic; None if it does not exist and ``create`` is set."""
    try:
        return opened.describe(topic)
    except UnknownTopic as error:
        if not create:
            raise UnknownTopic(
                error.message,
                hint="Give --create to make it, or make it with `isolog topic create`.",
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
    """Return the input's format. Text for a default-schema topic is lines, unless one is given."""
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


def _check_partition(topic: str, partition: int | None, count: int) -> None:
    """Refuse a partition that the topic lacks, before anything is read or created."""
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
            f"--key-separator is for lines, the input is {reading.format}",
            hint="A column `key` has the keys.",
        )
    if reading.format is Format.LINES and reading.columns is not None:
        raise InvalidOption("--schema is not for lines", hint="Give --format csv or json.")
    if reading.format is Format.PARQUET and reading.file is None:
        raise InvalidOption("Parquet cannot be read from a pipe", hint="Give --file FILE.")


def _new_schema(reading: Reading) -> pa.Schema | None:
    """Return the schema of the topic to create for this input; None is the default schema."""
    if reading.columns is not None or reading.format is Format.LINES:
        return reading.columns
    if not reading.headed:
        raise InvalidOption(
            "--create does not know the names of the columns with --no-header",
            hint='Give --schema, such as --schema "id bigint, name string".',
        )
    if reading.file is None:
        raise InvalidOption(
            f"--create does not know the columns of {reading.format} from standard input",
            hint='Give --schema, such as --schema "id bigint, name string".',
        )
    return schema_of_file(reading.file, reading.format, reading)


def _rehearse(reading: Reading, columns: pa.Schema | None) -> None:
    """Read a text file's first block as it will be read later, before its topic is created.

    Raises:
        InvalidRecord, SchemaMismatch: a record in it does not fit.
    """
    if columns is None or reading.file is None or reading.format not in TEXT:
        return
    metadata = metadata_of(columns)
    reading = structs.replace(reading, columns=columns, metadata=metadata, quiet=True)
    for batch in records(reading, idle=lambda _: None):
        strange = [name for name in batch.schema.names if name in metadata.names]
        Fitting.of_topic(columns, text=True).fit(batch.drop_columns(strange), 1)
        break


def _by_columns(reading: Reading, known: TopicDescription) -> Reading:
    """Let the input be read by the topic's columns, unless --schema names others."""
    return structs.replace(
        reading,
        columns=reading.columns or known.schema,
        metadata=metadata_of(known.schema),
        utf8=is_default(known.schema),
    )


def _fittings(reading: Reading, known: TopicDescription) -> list[Fitting]:
    """Return the steps from the input's batches to the topic's, by way of --schema if given."""
    text = reading.format in TEXT
    if reading.columns is None or reading.columns is known.schema:
        return [Fitting.of_topic(known.schema, text)]
    named = stored_columns(reading.columns, known.schema)
    return [Fitting.of_topic(named, text), Fitting.of_topic(known.schema, text=False)]
