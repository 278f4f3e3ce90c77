"""The data source ``isolog``, as Spark's Python Data Source API wants it."""

from __future__ import annotations

from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    DataSourceStreamWriter,
    DataSourceWriter,
)
from pyspark.sql.types import StructType

from spark_stream.datasource.options import sink_options, source_options
from spark_stream.datasource.plainly import RefusedStream, plainly
from spark_stream.datasource.planning import Planner
from spark_stream.datasource.reader import IsologReader
from spark_stream.datasource.stream_reader import IsologStreamReader
from spark_stream.datasource.types import to_spark
from spark_stream.datasource.writer import IsologStreamWriter, IsologWriter
from spark_stream.errors import IsologError, Unsupported


class IsologDataSource(DataSource):
    """``format("isolog")``: a topic of an isolog as a source and as a sink."""

    @classmethod
    def name(cls) -> str:
        return "isolog"

    @plainly
    def schema(self) -> StructType:
        return to_spark(Planner.of(source_options(self.options)).shown())

    @plainly
    def reader(self, schema: StructType) -> DataSourceReader:
        return IsologReader(source_options(self.options, streaming=False), schema)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        try:
            return IsologStreamReader(source_options(self.options, streaming=True), schema)
        except IsologError as error:
            return RefusedStream(error)

    # Spark calls these two by position in one place and by keyword in another: the names stay.
    @plainly
    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        if overwrite:
            raise Unsupported(
                "mode overwrite: a log is only ever appended to",
                hint="Use mode('append'); to start afresh, delete the topic and make it anew.",
            )
        return IsologWriter(sink_options(self.options, streaming=False), schema)

    @plainly
    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:
        return IsologStreamWriter(sink_options(self.options, streaming=True), schema)
