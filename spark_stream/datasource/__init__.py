"""What Spark calls: ``format("isolog")``. Knows ``client`` and ``wire``, nothing below them.

``source``    the data source: from options to readers and writers

Rooms, each of which imports only those above it:

``values``    offsets and limits of a query
``spark``     types, sessions, processes and errors of Spark
``watching``  lag, metrics and progress bars
``options``   which options there are, and what they may be
``reading``   the batch and the streaming source
``writing``   the batch and the streaming sink
"""

from __future__ import annotations

from spark_stream.datasource.source import IsologDataSource

__all__ = ["IsologDataSource"]
