"""The options of ``format("isolog")``: their names, meanings, parsers and errors.

Names are not case-sensitive. Each invalid value has a specific error. The error for an unknown name
suggests the nearest known one. No option is silently ignored.

``table``           every option: name, uses, meaning, parser and default
``values``          the parsers of options
``names``           checks of the names of options, and the options of Spark's Kafka connector
``query``           the checked options of a source, and of a sink
``catalog_tables``  the options of catalog tables and temporary views, for source and sink
"""

from __future__ import annotations

from spark_stream.datasource.options.catalog_tables import sink_part, source_part
from spark_stream.datasource.options.query import (
    SinkOptions,
    SourceOptions,
    sink_options,
    source_options,
)
from spark_stream.datasource.options.values import FromProgress, OffsetSpec

__all__ = [
    "FromProgress",
    "OffsetSpec",
    "SinkOptions",
    "SourceOptions",
    "sink_options",
    "sink_part",
    "source_options",
    "source_part",
]
