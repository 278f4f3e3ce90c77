"""The protocol between clients and brokers as a library. No I/O, no thread, no clock.

``frames`` cuts bytes into frames; ``connection`` is one side of a connection: bytes in, events
out. ``docs/protocol.md`` specifies both to the byte.
"""

from spark_stream.protocol.connection import (
    Cancelled,
    Connection,
    Credited,
    Ending,
    Event,
    Failed,
    Limits,
    Lost,
    Opened,
    Ready,
    Received,
    StreamOver,
)
from spark_stream.protocol.frames import Allocate, Bytes

__all__ = [
    "Allocate",
    "Bytes",
    "Cancelled",
    "Connection",
    "Credited",
    "Ending",
    "Event",
    "Failed",
    "Limits",
    "Lost",
    "Opened",
    "Ready",
    "Received",
    "StreamOver",
]
