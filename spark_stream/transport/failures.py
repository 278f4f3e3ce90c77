"""Errors on the wire, and the greeting that a broker sends first."""

from __future__ import annotations

from typing import Any, Final

import msgspec

from spark_stream.errors import (
    BrokerUnavailable,
    InternalError,
    IsologError,
    RequestTimeout,
    UnsupportedVersion,
    from_wire,
)
from spark_stream.transport.streams import CallFailed, ConnectionLost, StreamCancelled

TRANSPORT_ERRORS = (CallFailed, ConnectionLost, StreamCancelled, TimeoutError)
"""What a stream raises; :func:`failure_of` converts it to an IsologError."""


ERROR_BYTES_MAX: Final = 256 << 10
_SHORTENED: Final = 10_000


class Greeting(msgspec.Struct, frozen=True):
    """Which broker it is, as its HELLO says."""

    cluster_id: str
    broker_id: str


# Made while the module is imported: if msgspec learned a class in two threads at once, the process
# would crash.
_GREETINGS: Final = msgspec.msgpack.Decoder(Greeting)
_ERRORS: Final = msgspec.msgpack.Decoder(dict)


def greeting_bytes(cluster_id: str, broker_id: str) -> bytes:
    """Return the greeting of a broker."""
    return msgspec.msgpack.encode(Greeting(cluster_id, broker_id))


def read_greeting(data: bytes, address: str) -> Greeting:
    """Return the greeting of the broker at ``address``.

    Raises:
        BrokerUnavailable: it is not a broker of this release.
    """
    try:
        return _GREETINGS.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError):
        raise BrokerUnavailable(
            f"{address} is not a broker of this release", address=address
        ) from None


def error_bytes(error: IsologError) -> bytes:
    """Return an error as it is sent; if it is too large, shortened and without its details."""
    value = error.to_wire()
    data = msgspec.msgpack.encode(value)
    if len(data) > ERROR_BYTES_MAX:
        value |= {"message": error.message[:_SHORTENED], "details": {}}
        data = msgspec.msgpack.encode(value)
    return data


def failure_of(error: Exception, address: str) -> IsologError:
    """Return the error that a caller gets for what a stream raised."""
    match error:
        case CallFailed():
            value: dict[str, Any] = _ERRORS.decode(error.error)
            return from_wire(value)
        case TimeoutError():
            return RequestTimeout(f"no answer from {address} in time", address=address)
        case ConnectionLost(code="VERSION"):
            return UnsupportedVersion(str(error), address=address)
        case ConnectionLost() | StreamCancelled() | OSError():
            return BrokerUnavailable(str(error), address=address)
        case _:
            return InternalError(f"{address}: {error}", address=address)
