"""isolog: a replicated, Arrow-native log with a PySpark Structured Streaming source and sink.

In Spark: ``spark.readStream.format("isolog")`` and ``df.writeStream.format("isolog")``. They need
no import. Programs import :mod:`isolog`, which has the same names.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

from spark_stream import errors

if TYPE_CHECKING:
    from spark_stream import aio as aio
    from spark_stream import testing as testing
    from spark_stream.client.log import Log, connect
    from spark_stream.client.reading.consumer import Consumer
    from spark_stream.client.values import Record, Written
    from spark_stream.client.writing.producer import Producer
    from spark_stream.client.writing.transactional import TransactionalProducer
    from spark_stream.consistency.lakes import LakeDescription, LakeTopic
    from spark_stream.lake_worker.worker import LakeWorker
    from spark_stream.wire.cluster_messages import (
        BrokerDescription,
        BrokerStatus,
        ClusterDescription,
    )
    from spark_stream.wire.topic_messages import PartitionDescription, TopicDescription
    from spark_stream.wire.transaction_messages import TransactionDescription

    __version__: str

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

_PLACES: Final = {
    "BrokerDescription": "wire.cluster_messages",
    "BrokerStatus": "wire.cluster_messages",
    "ClusterDescription": "wire.cluster_messages",
    "Consumer": "client.reading.consumer",
    "LakeDescription": "consistency.lakes",
    "LakeTopic": "consistency.lakes",
    "LakeWorker": "lake_worker.worker",
    "Log": "client.log",
    "PartitionDescription": "wire.topic_messages",
    "Producer": "client.writing.producer",
    "Record": "client.values",
    "TopicDescription": "wire.topic_messages",
    "TransactionDescription": "wire.transaction_messages",
    "TransactionalProducer": "client.writing.transactional",
    "Written": "client.values",
    "connect": "client.log",
}
"""The module of each public name. It is imported on the first use of the name."""

if not TYPE_CHECKING:

    def __getattr__(name: str) -> Any:
        """Import the module of a public name, because pyarrow and NumPy take 0.3 s to import."""
        if name in ("aio", "testing"):
            return import_module(f"spark_stream.{name}")
        if name == "__version__":
            value = import_module("spark_stream.environment").VERSION
        elif name in _PLACES:
            value = getattr(import_module(f"spark_stream.{_PLACES[name]}"), name)
        else:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        globals()[name] = value
        return value


def __dir__() -> list[str]:
    return sorted([*__all__, "aio", "testing"])
