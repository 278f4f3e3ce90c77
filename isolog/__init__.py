"""isolog: a replicated, Arrow-native log with a PySpark Structured Streaming source and sink.

In Spark: ``spark.readStream.format("isolog")`` and ``df.writeStream.format("isolog")``. They need
no import. In Python: ``import isolog`` and :func:`connect`.

``aio``      the client for asyncio
``errors``   all errors
``spark``    progress and lag of streaming queries (needs PySpark)
``testing``  clusters for tests
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from isolog import errors
from spark_stream import (
    BrokerDescription,
    BrokerStatus,
    ClusterDescription,
    Consumer,
    Log,
    PartitionDescription,
    Producer,
    Record,
    TopicDescription,
    TransactionalProducer,
    TransactionDescription,
    Written,
    __version__,
    connect,
)

__all__ = [
    "BrokerDescription",
    "BrokerStatus",
    "ClusterDescription",
    "Consumer",
    "Log",
    "PartitionDescription",
    "Producer",
    "Record",
    "TopicDescription",
    "TransactionDescription",
    "TransactionalProducer",
    "Written",
    "__version__",
    "connect",
    "errors",
]

if TYPE_CHECKING:
    from isolog import aio as aio
    from isolog import spark as spark
    from isolog import testing as testing
else:

    def __getattr__(name: str) -> Any:
        """Import a module of the package on its first use. Programs without it start sooner."""
        if name in ("aio", "spark", "testing"):
            return import_module(f"isolog.{name}")
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
