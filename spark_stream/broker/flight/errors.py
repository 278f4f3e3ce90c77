"""Errors as Flight carries them: our JSON object rides in the error's ``extra_info``.

There is little room for it (``limits.ERROR_BYTES_MAX``), and an error may name all columns of a
table. What is too long is cut: an error without its last words still says what is wrong.
"""

from __future__ import annotations

from typing import Any, Final
from urllib.parse import quote

import pyarrow.flight as fl

from spark_stream.errors import (
    InternalError,
    IsologError,
    RequestTimeout,
    Unauthenticated,
)
from spark_stream.wire.limits import ERROR_BYTES_MAX
from spark_stream.wire.messages import json_bytes

_CUT: Final = "…"
_DETAIL_BYTES_MAX: Final = 200


def to_flight(error: IsologError) -> fl.FlightError:
    """Convert an error to the Flight error that any Flight client understands."""
    value = error.to_wire()
    if len(json_bytes(value)) > ERROR_BYTES_MAX:
        value["details"] = _short_ones(error.details)
        for words in ("message", "hint"):
            while len(json_bytes(value)) > ERROR_BYTES_MAX and len(value[words]) > 1:
                value[words] = _shorter(value[words])
    text = str(error)
    while len(quote(text)) > ERROR_BYTES_MAX:
        text = _shorter(text)
    return _status_of(error)(text, json_bytes(value))


def _status_of(error: IsologError) -> Any:
    """Return the class of Flight's errors that gives the error its gRPC status.

    Only Flight's own errors have room for our JSON object. None of them means NOT_FOUND or
    INVALID_ARGUMENT; exceptions that do are sent with the broker's traceback, without the object.
    """
    match error:
        case Unauthenticated():
            return fl.FlightUnauthenticatedError
        case RequestTimeout():
            return fl.FlightTimedOutError
        case InternalError():
            return fl.FlightInternalError
        case _:
            return fl.FlightUnavailableError if error.retriable else fl.FlightServerError


def _shorter(text: str) -> str:
    return text[: max(0, len(text) * 3 // 4 - 1)] + _CUT


def _short_ones(details: dict[str, Any]) -> dict[str, Any]:
    """Return those details that take little room, such as numbers and names."""
    return {
        name: value
        for name, value in details.items()
        if len(json_bytes({name: value})) <= _DETAIL_BYTES_MAX
    }
