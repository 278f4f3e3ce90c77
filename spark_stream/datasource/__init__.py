"""The data source ``format("isolog")`` of Spark. It depends on ``client`` and ``wire`` only.

``source``    the data source: from options to readers and writers

Rooms, each of which imports only those above it:

``values``    offsets and limits of a query
``spark``     types, sessions, processes and errors of Spark
``watching``  lag, metrics and progress bars
``options``   names, parsers, checks and errors of options
``reading``   the batch and the streaming source
``writing``   the batch and the streaming sink
"""

from __future__ import annotations

from spark_stream.datasource.source import IsologDataSource

__all__ = ["IsologDataSource"]
