"""The protocol between clients and brokers as a library. No I/O, no thread, no clock.

``frames`` cuts bytes into frames. ``connection`` is one side of a connection: bytes in, events out.
``docs/protocol.md`` specifies both to the byte.
"""

from spark_stream.protocol.connection import (
    OLDEST,
    VERSION,
    Cancelled,
    Connection,
    ConnectionLimits,
    Credited,
    Ending,
    Event,
    Failed,
    Lost,
    Ready,
    Received,
    StreamOpened,
    StreamOver,
    data_bytes,
)
from spark_stream.protocol.frames import FRAMES_AT_ONCE, Allocate, Body, Bytes, nbytes_of

__all__ = [
    "FRAMES_AT_ONCE",
    "OLDEST",
    "VERSION",
    "Allocate",
    "Body",
    "Bytes",
    "Cancelled",
    "Connection",
    "ConnectionLimits",
    "Credited",
    "Ending",
    "Event",
    "Failed",
    "Lost",
    "Ready",
    "Received",
    "StreamOpened",
    "StreamOver",
    "data_bytes",
    "nbytes_of",
]
