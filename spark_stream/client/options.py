"""Checks of options: isolation levels, numbers, unknown names.

For options of Kafka's clients the error names the option of isolog to use instead.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from inspect import signature
from numbers import Real
from typing import Any, Final

from spark_stream.consistency.isolation import CONSUMER_LEVELS, Isolation
from spark_stream.errors import InvalidOption
from spark_stream.schema.schemas import meant

_CONNECT: Final = 'Give the address once: isolog.connect("host:9092").'
_ISOLATION: Final = "Use isolation=: read_committed waits for all in-sync replicas."
_TIMEOUT: Final = "Use timeout_ms=."
_LEAVE_OUT: Final = "Leave it out: a producer retries, and each record is in the log once."
_BYTES: Final = "Leave it out: keys and values are bytes, or text, which is sent as UTF-8."

_EVERYWHERE: Final = {
    "bootstrap_servers": _CONNECT,
    "client_id": "Leave it out: it has no replacement.",
}
_KAFKAS: Final[Mapping[str, Mapping[str, str]]] = {
    "isolog.connect": {"bootstrap_servers": "Use bootstrap=."},
    "log.producer": _EVERYWHERE
    | {
        "acks": _ISOLATION,
        "batch_size": "Use batch_bytes=.",
        "buffer_memory": "Use buffer_bytes=.",
        "compression_type": "Use the topic's setting compression.",
        "delivery_timeout_ms": _TIMEOUT,
        "enable_idempotence": _LEAVE_OUT,
        "key_serializer": _BYTES,
        "max_block_ms": _TIMEOUT,
        "request_timeout_ms": _TIMEOUT,
        "retries": _LEAVE_OUT,
        "value_serializer": _BYTES,
    },
    "log.consumer": _EVERYWHERE
    | {
        "auto_offset_reset": 'Use start=: "earliest" or "latest".',
        "consumer_timeout_ms": "Use records(timeout=), in seconds.",
        "enable_auto_commit": "Use auto_commit= with group=; with name= call commit().",
        "group_id": "Use group=.",
        "isolation_level": "Use isolation=.",
        "key_deserializer": _BYTES,
        "max_poll_interval_ms": "Use processing_timeout=, in seconds.",
        "max_poll_records": "Use poll(max_records=).",
        "session_timeout_ms": "Use session_timeout=, in seconds.",
        "value_deserializer": _BYTES,
    },
}
"""Options of Kafka's clients by the call that gets them, each with its replacement."""


def known_options(*functions: Any) -> set[str]:
    """Return the names of the functions' keyword arguments."""
    return {
        name
        for function in functions
        for name, each in signature(function).parameters.items()
        if each.kind is each.KEYWORD_ONLY or each.default is not each.empty
    }


def refuse_unknown(call: str, options: Iterable[str], known: Iterable[str]) -> None:
    """Raise the error for the first of these options, which ``call`` does not have.

    Raises:
        InvalidOption: The hint has the option to use instead.
    """
    option = next(iter(options), None)
    if option is None:
        return
    name = option.lower().replace(".", "_").replace("-", "_")
    names, hint = sorted(known), _KAFKAS[call].get(name)
    guess = "" if hint else meant(option, names)
    raise InvalidOption(
        f"{call} has no option {option!r}{guess}",
        hint=hint or f"It takes {', '.join(names)}.",
        option=option,
    )


def level(name: str, allowed: tuple[Isolation, ...] = CONSUMER_LEVELS) -> Isolation:
    """Return an isolation level by its name, or raise InvalidOption with the allowed ones."""
    try:
        found = Isolation(str(name).lower())
    except ValueError:
        found = None
    if found is None or found not in allowed:
        raise InvalidOption(
            f"isolation takes {' | '.join(allowed)}, not {name!r}",
            option="isolation",
            value=str(name),
        )
    return found


def check_setting(name: str, value: float, low: int, high: int) -> None:
    """Raise InvalidOption for a setting that is not a number, or out of its range."""
    if not isinstance(value, Real) or isinstance(value, bool) or not low <= value <= high:
        raise InvalidOption(
            f"{name} takes a number from {low} to {high}, not {value!r}", option=name
        )
