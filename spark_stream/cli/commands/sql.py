"""``isolog sql``: a statement of DuckDB's SQL in which topics are tables."""

from __future__ import annotations

import re
import signal
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from enum import StrEnum
from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING, Annotated, Any, BinaryIO, Final

import typer

from spark_stream.cli.options import (
    Bootstrap,
    FromLake,
    Isolation,
    LogPath,
    Older,
    Shape,
    connection,
)
from spark_stream.cli.terminal import standard_output
from spark_stream.errors import InvalidOption, InvalidRequest, UnknownTopic
from spark_stream.extras import install_hint

if TYPE_CHECKING:
    import pyarrow as pa

    from spark_stream.cli.output.formats import Writer
    from spark_stream.client.reading.datasets import TopicDataset, TopicDatasets

_FLOATS: Final = ("halffloat", "float", "double")
_ROWS: Final = 1 << 14  # of a batch of the result
_UNKNOWN_TABLE: Final = re.compile(
    r'Table with name "?(?P<name>.+?)"? does not exist!'
    r'|No files found that match the pattern "(?P<file>[^"]+)"',
    re.DOTALL,
)
_NAME_IN_PARTS: Final = re.compile(
    r'syntax error at or near "[-.]"|does not exist because schema|Catalog "[^"]*" does not exist'
)
"""Errors of DuckDB about a name that is not quoted."""
_LISTING: Final = re.compile(r"(SHOW|DESCRIBE)(\s+(ALL\s+)?TABLES)?\s*;?", re.IGNORECASE)
_QUOTED: Final = re.compile(r"""'[^']*'|"[^"]*\"""")
_QUERIES: Final = ("SELECT", "EXPLAIN")
_ARROW: Final = frozenset(
    {
        *("boolean", "tinyint", "smallint", "integer", "bigint", "hugeint", "float", "double"),
        *("utinyint", "usmallint", "uinteger", "ubigint", "decimal", "varchar", "blob", "uuid"),
        *("date", "time", "timestamp", "timestamp_s", "timestamp_ms", "timestamp_ns"),
        *("timestamp with time zone", "list", "struct", "map"),
    }
)
"""The types whose values each format can have. Values of others become texts."""
_QUOTES: Final = "Put double quotes around a name with dots or dashes, or that is a keyword"


class ResultShape(StrEnum):
    """Output formats of a result."""

    TABLE = "table"
    JSON = "json"
    CSV = "csv"
    PARQUET = "parquet"
    ARROW = "arrow"


def sql(
    statement: Annotated[
        str,
        typer.Argument(
            metavar="STATEMENT", help="The statement, such as a SELECT.", show_default=False
        ),
    ],
    bootstrap: Bootstrap = None,
    path: LogPath = None,
    isolation: Isolation = "read_committed",
    lake: FromLake = Older.AUTO,
    output: Annotated[
        ResultShape | None,
        typer.Option(
            "--output",
            "-o",
            help="Output format. Default: a table on a terminal, else JSON lines.",
            show_default=False,
        ),
    ] = None,
) -> None:
    """Run a statement of DuckDB's SQL in which topics are tables.

    Each topic is read up to the end that it has when the statement starts. With
    --isolation read_atomic these ends are one cut. Removed records are read from the tables of
    lakes. By default only committed records are read, unlike in isolog consume. Needs the
    extra sql.

    \b
    isolog sql "SHOW TABLES"
    isolog sql "SELECT carrier, count(*) FROM flights GROUP BY ALL"
    isolog sql 'SELECT * FROM "my-topic" WHERE _offset > 500' -o csv
    isolog sql "FROM flights" -o parquet > flights.parquet
    """
    duckdb = _duckdb()
    default = ResultShape.TABLE if sys.stdout.isatty() else ResultShape.JSON
    shape = output or default
    if shape in (ResultShape.ARROW, ResultShape.PARQUET) and sys.stdout.isatty():
        raise InvalidOption(
            f"the format {shape} cannot go to a terminal", hint="Use a file or a pipe."
        )
    with connection(bootstrap, path) as opened:
        from spark_stream.client.lake_tables import LakeTables
        from spark_stream.client.options import level
        from spark_stream.client.reading.datasets import TopicDatasets
        from spark_stream.client.topics import TopicsClient

        topics = TopicsClient(opened)
        tables = None if lake is Older.NEVER else LakeTables(opened, topics)
        datasets = TopicDatasets(opened, topics, level(isolation), tables)
        with (
            _ended_by_ctrl_c(),
            duckdb.connect() as database,
            _plain_errors(duckdb, datasets, statement),
        ):
            # Otherwise an unknown table is looked up among the variables of this module.
            database.execute("SET python_enable_replacements = false; SET TimeZone = 'UTC'")
            # In a program without a file (python -c) DuckDB prints a progress bar among the rows.
            database.execute("SET enable_progress_bar = false")
            result = _result(duckdb, database, datasets, statement)
            with standard_output() as sink:
                _write(_convertible(result), shape, sink, utf8=datasets.are_default)


def _duckdb() -> ModuleType:
    try:
        return import_module("duckdb")
    except ImportError:
        raise InvalidOption(
            "isolog sql needs the package duckdb", hint=install_hint("sql")
        ) from None


@contextmanager
def _ended_by_ctrl_c() -> Iterator[None]:
    """End the process at Ctrl-C. Handlers in Python run only after DuckDB has returned."""
    before = signal.getsignal(signal.SIGINT)
    if before is not signal.default_int_handler:  # as under nohup
        yield
        return
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


@contextmanager
def _plain_errors(duckdb: Any, datasets: TopicDatasets, statement: str) -> Iterator[None]:
    """Raise errors of the statement, and of the read that it made, as errors of isolog.

    Raises:
        InvalidOption: The statement is wrong.
        InvalidRequest: The statement failed.
        IsologError: A topic could not be read.
    """
    import pyarrow as pa

    try:
        yield
    except (duckdb.Error, pa.ArrowException) as error:
        if datasets.error is not None:
            raise datasets.error from None
        message = str(error).partition("\n\nLINE")[0]
        if isinstance(error, duckdb.ProgrammingError):
            raise InvalidOption(message, hint=_hint(datasets, statement, message)) from None
        raise InvalidRequest(message, hint="Change the statement.") from None


def _hint(datasets: TopicDatasets, statement: str, message: str) -> str | None:
    """Return the advice to quote a name, if the error may be about a name without quotes."""
    plain = _QUOTED.sub(" ", statement)
    near = re.search(r'at or near "(.+?)"', message)
    for name in datasets.topics.names():
        is_word = name.isidentifier()
        if is_word and (near is None or near[1].lower() != name.lower()):
            continue
        if re.search(rf"(?<![\w.-]){re.escape(name)}(?![\w.-])", plain, re.IGNORECASE):
            return f'{_QUOTES}: SELECT * FROM "{name}".'
    return f'{_QUOTES}: SELECT * FROM "my-topic".' if _NAME_IN_PARTS.search(message) else None


def _result(duckdb: Any, database: Any, datasets: TopicDatasets, statement: str) -> Any:
    """Prepare a query. Each table that DuckDB does not find is looked up as a topic.

    Raises:
        InvalidOption: The statement is no single query, or names a file that does not exist.
        UnknownTopic: There is no such topic.
    """
    import pyarrow as pa

    _check_query(duckdb, statement)
    if _LISTING.fullmatch(statement.strip()):
        names = pa.array(sorted(datasets.topics.names()), pa.string())
        return database.from_arrow(pa.table({"name": names}))
    known: set[str] = set()
    while True:
        try:
            return database.sql(statement)
        except duckdb.Error as error:
            found = _UNKNOWN_TABLE.search(str(error))
            name = None if found is None else found["name"] or found["file"]
            if name is None or name in known:
                raise
            known.add(name)
            topic = _topic(datasets, name, is_file=bool(found and found["file"]))
            _check_cases(datasets.topics.names(), topic, statement)
            _register(database, name, datasets.open(topic))


def _check_cases(topics: Iterable[str], topic: str, statement: str) -> None:
    """Raise InvalidOption if a statement has two topics that only differ in case.

    DuckDB ignores the case of names, and would read one of them for both.
    """
    same = [each for each in topics if each.lower() == topic.lower()]
    named = [each for each in same if re.search(rf"(?<!\w){re.escape(each)}(?!\w)", statement)]
    if len(named) > 1:
        raise InvalidOption(
            f"the statement names topics that differ only in case: {', '.join(sorted(named))}",
            hint="Run one statement for each of them. DuckDB ignores the case of names.",
        )


def _register(database: Any, name: str, dataset: TopicDataset) -> None:
    """Register a topic as a table of this name.

    DuckDB trusts the filters that it passes to a dataset, and pyarrow has other rules for NaN and
    for lists of numbers. So filters on floating-point columns stay in DuckDB: it cannot pass those
    on an expression.
    """
    floating = {each.name for each in dataset.schema if _has_floats(each.type)}
    if not floating:
        database.register(name, dataset)
        return
    source = f"isolog topic {name}"
    database.register(source, dataset)
    columns = [(_quoted(each), each in floating) for each in dataset.schema.names]
    shown = [
        f"CASE WHEN {each} IS NULL THEN NULL ELSE {each} END AS {each}" if is_floating else each
        for each, is_floating in columns
    ]
    database.execute(
        f"CREATE TEMP VIEW {_quoted(name)} AS SELECT {', '.join(shown)} FROM {_quoted(source)}"
    )


def _has_floats(kind: pa.DataType) -> bool:
    if kind.num_fields == 0:
        return str(kind) in _FLOATS
    return any(_has_floats(kind.field(number).type) for number in range(kind.num_fields))


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def _check_query(duckdb: Any, statement: str) -> None:
    """Raise InvalidOption for anything but one query. The repetition of others has effects."""
    parts = duckdb.extract_statements(statement)
    if not parts:
        raise InvalidOption(
            "the statement is empty", hint='Write a query, or "SHOW TABLES" to list the topics.'
        )
    if sum(bool(each.query.strip()) for each in parts) > 1:  # a PIVOT has two parts without text
        raise InvalidOption(
            "isolog sql runs one statement", hint="Run the command once for each statement."
        )
    kind = parts[-1].type.name
    if kind not in _QUERIES:
        raise InvalidOption(
            f"isolog sql runs queries, and the statement is a {kind}",
            hint="Write a SELECT. --output writes its result in a format, such as parquet.",
        )


def _topic(datasets: TopicDatasets, name: str, *, is_file: bool) -> str:
    """Return the topic with this name, also if only the case differs.

    Raises:
        InvalidOption: There is no such topic, and DuckDB looked for a file.
        UnknownTopic: There is no such topic.
    """
    from spark_stream.schema.schemas import meant

    topics = datasets.topics.names()
    same = [each for each in topics if each.lower() == name.lower()]
    if name in topics:
        return name
    if len(same) == 1:
        return same[0]
    if is_file:
        raise InvalidOption(
            f"there is no file {name!r}, and no topic of this name",
            hint="Correct the path. It is relative to the folder in which the command runs.",
        )
    raise UnknownTopic(f"there is no topic {name!r}{meant(name, topics)}", topic=name)


def _convertible(result: Any) -> Any:
    """Return a result whose columns have different names, and types that each format has."""
    names = _unique(result.columns)
    simple = [_is_simple(kind) for kind in result.types]
    if all(simple) and names == result.columns:
        return result
    quoted = [_quoted(name) for name in names]
    return result.project(
        ", ".join(
            f"#{number}{'' if as_it_is else '::VARCHAR'} AS {name}"
            for number, (name, as_it_is) in enumerate(zip(quoted, simple, strict=True), 1)
        )
    )


def _unique(names: list[str]) -> list[str]:
    """Return the names, each later one of the same name with a number."""
    found: list[str] = []
    for name in names:
        number, free = 1, name
        while free in found:
            free = f"{name}_{number}"
            number += 1
        found.append(free)
    return found


def _is_simple(kind: Any) -> bool:
    if kind.id not in _ARROW:
        return False
    if kind.id not in ("list", "struct", "map"):
        return True
    return all(_is_simple(part) for _, part in kind.children)


def _write(result: Any, shape: ResultShape, sink: BinaryIO, *, utf8: bool) -> None:
    from spark_stream.cli.output.formats import writer_of

    # DuckDB 1.5 renamed the method.
    stream = getattr(result, "to_arrow_reader", None) or result.fetch_arrow_reader
    reader = stream(_ROWS)
    writer: Writer
    if shape is ResultShape.PARQUET:
        writer = _Parquet(sink, reader.schema)
    else:
        writer = writer_of(Shape(shape), sink, reader.schema, utf8=utf8)
    sink.flush()
    for batch in reader:
        writer.write(batch)
        sink.flush()
    writer.close()
    sink.flush()


class _Parquet:
    """A Parquet file, which is complete after :meth:`close`."""

    def __init__(self, sink: BinaryIO, schema: pa.Schema) -> None:
        import pyarrow.parquet as pq

        self._writer = pq.ParquetWriter(_Counted(sink), schema, compression="zstd")

    def write(self, batch: pa.RecordBatch) -> None:
        self._writer.write_batch(batch)

    def close(self) -> None:
        self._writer.close()


class _Counted:
    """A sink with its position, which a pipe does not have."""

    closed = False

    def __init__(self, sink: BinaryIO) -> None:
        self._sink = sink
        self._position = 0

    def write(self, data: Any) -> int:
        size = memoryview(data).nbytes
        self._sink.write(data)
        self._position += size
        return size

    def tell(self) -> int:
        return self._position

    def flush(self) -> None:
        self._sink.flush()
