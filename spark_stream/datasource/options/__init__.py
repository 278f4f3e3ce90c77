"""The options of ``format("isolog")``: which there are, what they may be, what is wrong with one.

Names are not case-sensitive. Every bad value has a message of its own, and an unknown name is
refused with the nearest known one: an option that is silently ignored costs its user a day.

``table``     every option: name, users, meaning, parser and default
``values``    parsers of numbers, truth values, names and levels
``places``    parsers of the offsets where a query starts or ends
``checking``  names that a query may not have
``source``    the checked options of a source
``sink``      the checked options of a sink
``shared``    one set of options for a source and a sink: those of tables and views
"""

from __future__ import annotations

from spark_stream.datasource.options.places import FromProgress, Named
from spark_stream.datasource.options.shared import sink_part, source_part
from spark_stream.datasource.options.sink import SinkOptions, sink_options
from spark_stream.datasource.options.source import SourceOptions, source_options

__all__ = [
    "FromProgress",
    "Named",
    "SinkOptions",
    "SourceOptions",
    "sink_options",
    "sink_part",
    "source_options",
    "source_part",
]
