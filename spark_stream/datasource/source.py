"""The data source ``isolog`` of Spark's Python Data Source API."""

from __future__ import annotations

from collections.abc import Mapping

from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    DataSourceStreamWriter,
    DataSourceWriter,
)
from pyspark.sql.types import StructType

from spark_stream.datasource.options import (
    SinkOptions,
    SourceOptions,
    sink_options,
    sink_part,
    source_options,
    source_part,
)
from spark_stream.datasource.options.catalog_tables import (
    names_both_sides,
    options_of_columns,
    table_options,
)
from spark_stream.datasource.reading.planning import Planner
from spark_stream.datasource.reading.reader import IsologReader, PushingReader
from spark_stream.datasource.reading.stream_reader import IsologStreamReader
from spark_stream.datasource.spark import releases
from spark_stream.datasource.spark.pickling import WorkerPickled
from spark_stream.datasource.spark.types import to_spark
from spark_stream.datasource.spark.workers import (
    PUSHES_FILTERS,
    RefusedStream,
    is_worker,
    with_spark_errors,
)
from spark_stream.datasource.writing.writer import IsologStreamWriter, IsologWriter
from spark_stream.errors import IsologError, Unsupported


class IsologDataSource(WorkerPickled, DataSource):
    """``format("isolog")``: a topic of an isolog as a source and as a sink."""

    @classmethod
    def name(cls) -> str:
        return "isolog"

    @with_spark_errors
    def schema(self) -> StructType:
        table = table_options(self.options)
        if table is None:
            return to_spark(Planner.of(self._source(StructType(), None), has_tasks=False).shown())
        source = source_options(source_part(table.given))
        sink_options(sink_part(table.given, streaming=True))  # check them too
        return table.at(source.place).kept_in(to_spark(Planner.of(source, has_tasks=False).shown()))

    def _source(self, schema: StructType, streaming: bool | None) -> SourceOptions:
        shared, given = self._shared(schema)
        part = source_part(shared, streaming=streaming)
        return source_options({**part, **given}, streaming=streaming)

    def _sink(self, schema: StructType, streaming: bool) -> SinkOptions:
        shared, given = self._shared(schema)
        return sink_options(
            {**sink_part(shared, streaming=streaming), **given}, streaming=streaming
        )

    def _shared(self, schema: StructType) -> tuple[Mapping[str, str], Mapping[str, str]]:
        """Return the options for source and sink together, and those of this query alone.

        The columns of a table have the table's options.
        """
        table = options_of_columns(self.options, schema)
        if table is not None:
            return table.given, self.options
        return (self.options, {}) if names_both_sides(self.options) else ({}, self.options)

    @with_spark_errors
    def reader(self, schema: StructType) -> DataSourceReader:
        options = self._source(schema, False)
        if options.push_filters and not releases.PUSHES_FILTERS:
            raise releases.lacks("the option pushFilters", "4.1")
        pushes = options.push_filters and is_worker(PUSHES_FILTERS)
        return (PushingReader if pushes else IsologReader)(options, schema)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        try:
            return IsologStreamReader(self._source(schema, True), schema)
        except IsologError as error:
            return RefusedStream(error)

    # Spark calls these two by position in one place and by keyword in another: the names stay.
    @with_spark_errors
    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        if overwrite:
            raise Unsupported(
                "mode overwrite: a log can only be appended to",
                hint="Use mode('append'), or delete the topic and create it again.",
            )
        return IsologWriter(self._sink(schema, False), schema)

    @with_spark_errors
    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:
        return IsologStreamWriter(self._sink(schema, True), schema)
