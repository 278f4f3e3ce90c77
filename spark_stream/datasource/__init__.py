"""What Spark calls: ``format("isolog")``. Knows ``client`` and ``wire``, nothing below them.

``source``       the data source: from options to readers and writers
``options``      which options there are, and what they may be
``kafka``        what to use instead of an option of Spark's Kafka connector
``tables``       the options of a catalog's table, kept with its columns
``place``        where the log is; what a path means
``host``         this host, and the JVM of Spark's driver
``session``      one connection a process, made after the fork
``types``        Spark's types and Arrow's
``nulls``        whether a query may say NOT NULL
``plainly``      our errors as Spark shows them
``offsets``      streaming offsets, and the ranges between them
``pacing``       how much of a backlog a micro-batch takes
``planning``     topics, schemas and offsets as a query needs them
``starts``       where a query starts and ends by its options
``limits``       what a micro-batch takes at least and at most
``tasks``        which ranges a Spark task reads
``lag``          how far a query is behind, from its progress
``listener``     watches queries: their lag in the driver's log, and as metrics
``metrics``      what Prometheus may know of queries
``progress``     progress bars for queries and batch jobs
``travel``       what Spark sends to a worker, which says there what is missing
``losses``       records that a query should read and that are gone, and what it does then
``reader``       the batch source, and how a range is read
``stream_reader``  the streaming source
``belonging``    which log a streaming sink's checkpoint is of
``routing``      rows to topics and partitions
``identity``     under which transactional id a task writes
``driver``       which driver planned a micro-batch, so that it can give it up
``renewal``      the deadline of a transaction, renewed while its tasks run
``content``      how many rows were written, and a digest of them
``replays``      whether a replayed batch is the one that was committed
``branches``     the branches of a micro-batch's transaction, and the driver's decision
``task``         how a task writes its rows
``writer``       the batch and the streaming sink
"""

from __future__ import annotations

from spark_stream.datasource.source import IsologDataSource

__all__ = ["IsologDataSource"]
