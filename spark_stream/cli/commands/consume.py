"""``isolog consume``: print the records of a topic, up to an end or without end."""

from __future__ import annotations

import errno
import os
import signal
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime
from types import FrameType
from typing import TYPE_CHECKING, Annotated, BinaryIO, Final

import typer
from msgspec import Struct

from spark_stream.cli.options import (
    Bootstrap,
    FromLake,
    Isolation,
    LogPath,
    Older,
    Shape,
    Topic,
    connection,
    position_of,
)
from spark_stream.cli.terminal import bar, standard_output
from spark_stream.consistency.isolation import Isolation as Level
from spark_stream.errors import InvalidOption, OffsetEvicted, OffsetOutOfRange, UnknownPartition
from spark_stream.operating_system import reader_has_closed
from spark_stream.structs import INT64_MAX

if TYPE_CHECKING:
    import pyarrow as pa

    from spark_stream.cli.output.formats import Template, Writer
    from spark_stream.client.lake_tables import LakeTables
    from spark_stream.client.reading.columns import View
    from spark_stream.client.reading.fetching import Source
    from spark_stream.client.topics import Place, TopicsClient

_RECORD: Final = ["topic", "partition", "offset", "timestamp", "key", "value", "headers"]
_WHICH: Final = "Which records"
_SHOWN_MAX: Final = 5
_OF_EACH: Final = (
    "An offset applies to each partition. Choose partitions with --partition, or give earliest, -N"
    " or a time."
)


def consume(
    topic: Topic,
    bootstrap: Bootstrap = None,
    path: LogPath = None,
    isolation: Isolation = "read_uncommitted",
    start: Annotated[
        str,
        typer.Option(
            "--from",
            metavar="POSITION",
            help="First position: earliest, latest, an offset (of each partition), -N (the last N"
            " of each partition),"
            " a time (2024-05-01T12:30:00Z, UTC without a zone), or an age (90s, 30m, 1h, 2d).",
            rich_help_panel=_WHICH,
        ),
    ] = "earliest",
    end: Annotated[
        str | None,
        typer.Option(
            "--to",
            metavar="POSITION",
            help="End position, exclusive: latest, an offset, a time or an age.",
            show_default=False,
            rich_help_panel=_WHICH,
        ),
    ] = None,
    partition: Annotated[
        list[int] | None,
        typer.Option(
            metavar="N", min=0, help="Only this partition. Repeatable.", rich_help_panel=_WHICH
        ),
    ] = None,
    max_records: Annotated[
        int | None,
        typer.Option(
            "--max-records",
            "-n",
            metavar="N",
            min=0,
            max=INT64_MAX,
            help="Stop after this many records.",
            show_default=False,
            rich_help_panel=_WHICH,
        ),
    ] = None,
    filter_: Annotated[
        str | None,
        typer.Option(
            "--filter",
            metavar="SQL",
            help='Only records that match this condition in Spark SQL: "delay > 60".',
            show_default=False,
            rich_help_panel=_WHICH,
        ),
    ] = None,
    lake: FromLake = Older.AUTO,
    follow: Annotated[
        bool,
        typer.Option(
            "--follow", help="Wait for new records, until Ctrl-C.", rich_help_panel=_WHICH
        ),
    ] = False,
    output: Annotated[
        Shape | None,
        typer.Option(
            "--output",
            "-o",
            help="Output format. Default: raw (one value per line). For a typed topic, or with"
            " --columns: a table on a terminal, else JSON lines.",
            show_default=False,
        ),
    ] = None,
    format_: Annotated[
        str | None,
        typer.Option(
            "--format",
            metavar="TEXT",
            help='Template of the line of a record, such as "{key} {value} {offset}".',
            show_default=False,
        ),
    ] = None,
    columns: Annotated[
        str | None,
        typer.Option(
            metavar="A,B,…", help="Only these columns, in this order.", show_default=False
        ),
    ] = None,
    metadata: Annotated[
        bool,
        typer.Option("--metadata", help="Add the columns _topic, _partition, _offset, _timestamp."),
    ] = False,
) -> None:
    """Print the records of a topic that are visible at the isolation level.

    By default these are also uncommitted records, unlike in isolog sql.

    \b
    isolog consume greetings --path data/
    isolog consume greetings --follow --format "{offset} {value}"
    isolog consume flights --from -20 --columns carrier,dep_delay
    isolog consume flights --filter "carrier = 'UA' and dep_delay > 60"
    isolog consume flights --isolation read_committed -o arrow > f.arrows
    """
    from spark_stream.cli.output.formats import Template, writer_of
    from spark_stream.client.lake_tables import LakeTables
    from spark_stream.client.options import level
    from spark_stream.client.reading.columns import View
    from spark_stream.client.topics import TopicsClient

    chosen = level(isolation)
    first = position_of("--from", start)
    last = None if end is None else position_of("--to", end)
    check_order(first, last)
    template = None if format_ is None else Template(format_)
    if template is not None and (output is not None or columns is not None or metadata):
        raise InvalidOption(
            "--format excludes --output, --columns and --metadata",
            hint="Name the columns in --format, or leave it out.",
        )
    if output is Shape.ARROW and sys.stdout.isatty():
        raise InvalidOption("an Arrow stream cannot go to a terminal", hint="Use a file or a pipe.")
    with connection(bootstrap, path) as opened:
        topics = TopicsClient(opened)
        schema = topics.describe(topic).schema
        shape = output or _default_shape(schema, columns)
        names = _columns(topic, schema, shape, template, columns, metadata)
        view = View.of(topic, schema, names, filter=filter_)
        wanted = RangeRequest(topic, chosen, tuple(partition or ()), first, last, follow)
        tables = None if lake is Older.NEVER else LakeTables(opened, topics)
        spans = wanted.spans(topics, view, tables)
        batches = followed(spans, _check_reader) if follow else bounded(spans)
        batches = _watched(_first(batches, max_records), topic, _count(spans, max_records))
        with standard_output() as sink:
            if template is not None:
                writer = template.writer(sink, utf8=view.default)
            else:
                writer = writer_of(shape, sink, view.schema, utf8=view.default)
            _copy(batches, writer, sink)


def _default_shape(schema: pa.Schema, columns: str | None) -> Shape:
    """Return the default format. It depends on the reader of the output: a person or a program."""
    from spark_stream.schema.schemas import is_default

    if is_default(schema) and columns is None:
        return Shape.RAW
    return Shape.TABLE if sys.stdout.isatty() else Shape.JSON


def _columns(
    topic: str,
    schema: pa.Schema,
    shape: Shape,
    template: Template | None,
    given: str | None,
    metadata: bool,
) -> list[str]:
    """Return the names of the columns to read."""
    from spark_stream.schema.schemas import METADATA, is_default

    if template is not None:
        return template.columns
    if shape is Shape.RAW:
        if not is_default(schema):
            raise InvalidOption(
                f"format raw needs a topic without a schema, and topic {topic!r} is typed",
                hint="Give --output json, csv, table or arrow, or --format.",
            )
        return ["value"]
    if given is not None:
        names = [name.strip() for name in given.split(",")]
        if len(set(names)) != len(names):
            raise InvalidOption("duplicate column in --columns", hint="Give each column once.")
        return names + [field.name for field in METADATA if metadata and field.name not in names]
    if is_default(schema):
        # The user has named the topic, and headers are lists, which do not fit a line.
        left_out = ("topic", "headers") if shape in (Shape.TABLE, Shape.CSV) else ()
        return [name for name in _RECORD if name not in left_out]
    return [*schema.names, *(field.name for field in METADATA if metadata)]


def _first(batches: Iterator[pa.RecordBatch], count: int | None) -> Iterator[pa.RecordBatch]:
    """Yield the first ``count`` records, or all for None."""
    if count is None:
        yield from batches
        return
    while count > 0:
        batch = next(batches, None)
        if batch is None:
            return
        yield batch.slice(0, count)
        count -= batch.num_rows


def _count(spans: list[Span], count: int | None) -> int | None:
    """Return the maximum number of records, None without an end."""
    ends = [each.end for each in spans]
    if None in ends:
        return count
    known = sum(each.end - each.start for each in spans if each.end is not None)
    return known if count is None else min(known, count)


def _watched(
    batches: Iterator[pa.RecordBatch], topic: str, count: int | None
) -> Iterator[pa.RecordBatch]:
    """Yield the batches, and show their share of ``count`` records in a bar."""
    if not count:
        yield from batches
        return
    done = 0
    with bar(f"from {topic}", screen_is_free=not sys.stdout.isatty()) as shown:
        for batch in batches:
            done += batch.num_rows
            shown.advance(batch.num_rows, min(1.0, done / count))
            yield batch


def _copy(batches: Iterator[pa.RecordBatch], writer: Writer, sink: BinaryIO) -> None:
    sink.flush()
    for batch in batches:
        writer.write(batch)
        sink.flush()
    writer.close()
    sink.flush()


def _check_reader() -> None:
    """Raise BrokenPipeError if the reader closed the pipe. In a quiet topic no write detects it."""
    if reader_has_closed(sys.stdout.fileno()):
        raise BrokenPipeError(errno.EPIPE, os.strerror(errno.EPIPE))


def check_order(start: Place, end: Place | None) -> None:
    """Raise InvalidOption if the range ends before it starts, for any contents of the log."""
    if end == "earliest":
        raise InvalidOption(
            "--to earliest: the range is empty",
            hint="Give latest, an offset or a time.",
            option="--to",
        )
    if isinstance(start, int) and isinstance(end, int):
        turned = (start < 0) == (end < 0) and end < start
    elif isinstance(start, datetime) and isinstance(end, datetime):
        turned = end.astimezone(UTC) < start.astimezone(UTC)
    else:
        turned = False
    if turned:
        raise InvalidOption(
            f"the range ends (--to {end}) before it starts (--from {start})",
            hint="Swap the two, or leave --to out.",
            option="--to",
        )


class Span(Struct, frozen=True):
    """Offsets of one partition. ``end`` is exclusive, None means without end."""

    source: Source
    start: int
    end: int | None


class RangeRequest(Struct, frozen=True):
    """A range of a topic. Without ``end``: up to the level's bound, or endless with ``follow``."""

    topic: str
    isolation: Level
    partitions: tuple[int, ...]
    start: Place
    end: Place | None
    follow: bool

    def spans(self, topics: TopicsClient, view: View, tables: LakeTables | None) -> list[Span]:
        """Return the current offsets of the range in each partition.

        ``tables``: the source of records below the log start.

        Raises:
            UnknownPartition: A requested partition does not exist.
            OffsetOutOfRange, OffsetEvicted: A partition lacks the offset of the start.
        """
        from spark_stream.client.reading.fetching import Source

        known = topics.describe(self.topic)
        count = len(known.partitions)
        for number in self.partitions:
            if number >= count:
                raise UnknownPartition(
                    f"topic {self.topic!r} has partitions 0 to {count - 1}, not {number}",
                    topic=self.topic,
                    partition=number,
                )
        chosen = sorted(set(self.partitions) or range(count))
        starts = self._resolved(topics, tables, self.start)
        if isinstance(self.start, int) and self.start >= 0:
            self._check_offset(topics, tables, chosen, self.start)
        end = "latest" if self.end is None and not self.follow else self.end
        ends = {} if end is None else self._resolved(topics, tables, end)
        return [
            Span(
                Source(topics.router, view, known.id, number, self.isolation, tables=tables),
                starts[number],
                ends.get(number),
            )
            for number in chosen
        ]

    def _check_offset(
        self, topics: TopicsClient, tables: LakeTables | None, chosen: list[int], offset: int
    ) -> None:
        """Check that each partition has an offset, before the first record is printed."""
        last = topics.offsets(self.topic)
        above = {number: last.offsets[number] for number in chosen if offset > last.offsets[number]}
        if above:
            raise OffsetOutOfRange(
                f"offset {offset} is above the end of partition {_numbered(above)}",
                hint=_OF_EACH,
                topic=self.topic,
            )
        first = last.log_start_offsets
        below = {number: first[number] for number in chosen if offset < first[number]}
        if below and tables is not None:
            first = tables.first_offsets(topics.known(self.topic), below)
            below = {number: at for number, at in first.items() if offset < at}
        if below:
            raise OffsetEvicted(
                f"offset {offset} is below the first record of partition {_numbered(below)}",
                hint=_OF_EACH,
                topic=self.topic,
            )

    def _resolved(
        self, topics: TopicsClient, tables: LakeTables | None, position: Place
    ) -> Mapping[int, int]:
        from spark_stream.client.topics import resolve_with_lineages

        if not isinstance(position, int) or position >= 0:
            return resolve_with_lineages(topics, self.topic, position, self.isolation, tables)[0]
        last = topics.offsets(self.topic, isolation=self.isolation)
        wanted = {number: max(0, at + position) for number, at in last.offsets.items()}
        first = last.log_start_offsets
        below = {number: at for number, at in first.items() if wanted[number] < at}
        if tables is not None:
            first = first | tables.first_offsets(topics.known(self.topic), below)
        return {number: max(first[number], at) for number, at in wanted.items()}


def _numbered(offsets: Mapping[int, int]) -> str:
    """Return the first partitions with their offsets, for an error."""
    shown = [f"{number} ({at})" for number, at in sorted(offsets.items())[:_SHOWN_MAX]]
    more = len(offsets) - len(shown)
    return ", ".join(shown) + (f" and {more} more" if more else "")


def bounded(spans: list[Span]) -> Iterator[pa.RecordBatch]:
    """Yield all visible batches, partition by partition, up to the isolation level's bound."""
    from spark_stream.client.reading.ranges import check_place, read_range

    for span in spans:
        assert span.end is not None
        # An empty range. But an offset that never existed is an error, which the leader detects.
        if span.start > span.end:
            check_place(span.source, span.start, span.end)
        for fetched in read_range(span.source, span.start, span.end):
            if fetched.batch.num_rows:
                yield fetched.batch


def followed(spans: list[Span], idle: Callable[[], None]) -> Iterator[pa.RecordBatch]:
    """Yield batches of all partitions as they arrive. Ctrl-C or SIGTERM ends this between batches.

    ``idle`` is called from time to time while no batch arrives.
    """
    from spark_stream.client.reading.loop import Fetcher, WantedRange

    fetcher = Fetcher([WantedRange(span.source, span.start, span.end) for span in spans])
    try:
        with _interruptible() as interrupt:
            while fetcher.running and not interrupt.is_requested:
                try:
                    with interrupt.at_once():
                        found = fetcher.take()
                except KeyboardInterrupt:
                    return
                if found is None:
                    idle()
                elif found[1].batch.num_rows:
                    yield found[1].batch
    finally:
        fetcher.stop()


class _Interrupt:
    """Signals. The first takes effect after the current batch, the second interrupts it."""

    def __init__(self) -> None:
        self.is_requested = False
        self._at_once = False

    def handle(self, number: int, frame: FrameType | None) -> None:
        if self._at_once or self.is_requested:
            raise KeyboardInterrupt
        self.is_requested = True

    @contextmanager
    def at_once(self) -> Iterator[None]:
        """Raise KeyboardInterrupt in the handler inside the block."""
        self._at_once = True
        try:
            yield
        finally:
            self._at_once = False


@contextmanager
def _interruptible() -> Iterator[_Interrupt]:
    interrupt = _Interrupt()
    numbers = (signal.SIGINT, signal.SIGTERM)
    before = [signal.signal(number, interrupt.handle) for number in numbers]
    try:
        yield interrupt
    finally:
        for number, handler in zip(numbers, before, strict=True):
            signal.signal(number, handler)
