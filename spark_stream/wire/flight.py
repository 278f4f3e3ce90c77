"""Errors as Flight carries them: our JSON object rides in the error's ``extra_info``."""

from __future__ import annotations

import json

import pyarrow.flight as fl

from spark_stream.errors import (
    BrokerUnavailable,
    InternalError,
    IsologError,
    RequestTimeout,
    from_wire,
)
from spark_stream.wire.messages import json_bytes


def to_flight(error: IsologError) -> fl.FlightError:
    """What a broker raises so that its caller gets this error, whatever Flight client that is."""
    return fl.FlightServerError(str(error), json_bytes(error.to_wire()))


def from_flight(error: Exception, address: str) -> IsologError:
    """The error a client raises for what Flight gave it; ``address`` is the broker it spoke to."""
    extra = getattr(error, "extra_info", b"")
    if extra:
        try:
            return from_wire(json.loads(extra))
        except (ValueError, AttributeError, TypeError):
            pass  # gRPC's own error: its kind decides, below
    text = str(error).partition(". Detail:")[0].partition(". gRPC client debug")[0]
    if isinstance(error, fl.FlightTimedOutError):
        return RequestTimeout(f"no answer from {address} in time", address=address)
    if isinstance(error, fl.FlightUnavailableError | fl.FlightCancelledError | OSError):
        return BrokerUnavailable(f"{address}: {text}", address=address)
    return InternalError(f"{address}: {text}", address=address)
