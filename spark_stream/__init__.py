"""isolog: a replicated, Arrow-native log with a PySpark Structured Streaming source and sink.

In Spark: ``spark.readStream.format("isolog")`` and ``df.writeStream.format("isolog")``. They need
no import. Programs import :mod:`isolog`, which has the same names.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from spark_stream import errors
from spark_stream.client.log import Log, connect
from spark_stream.client.reading.consumer import Consumer
from spark_stream.client.values import Record, Written
from spark_stream.client.writing.producer import Producer
from spark_stream.client.writing.transactional import TransactionalProducer
from spark_stream.environment import VERSION
from spark_stream.wire.cluster_messages import BrokerDescription, BrokerStatus, ClusterDescription
from spark_stream.wire.topic_messages import PartitionDescription, TopicDescription
from spark_stream.wire.transaction_messages import TransactionDescription

__version__ = VERSION

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
    from spark_stream import aio as aio
    from spark_stream import testing as testing
else:

    def __getattr__(name: str) -> Any:
        """Import ``isolog.aio`` and ``isolog.testing`` on first use: no other import waits."""
        if name in ("aio", "testing"):
            return import_module(f"spark_stream.{name}")
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
