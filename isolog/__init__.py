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

import spark_stream
from isolog import errors

if TYPE_CHECKING:
    from isolog import aio as aio
    from isolog import spark as spark
    from isolog import testing as testing
    from spark_stream import (
        BrokerDescription,
        BrokerStatus,
        ClusterDescription,
        Consumer,
        LakeDescription,
        LakeTopic,
        LakeWorker,
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
    "LakeDescription",
    "LakeTopic",
    "LakeWorker",
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

if not TYPE_CHECKING:

    def __getattr__(name: str) -> Any:
        """Import a public name on its first use. Programs without it start sooner."""
        if name in ("aio", "spark", "testing"):
            return import_module(f"isolog.{name}")
        if name not in __all__:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        value = getattr(spark_stream, name)
        globals()[name] = value
        return value


def __dir__() -> list[str]:
    return sorted([*__all__, "aio", "spark", "testing"])
