"""All calls of the protocol, by their names."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from spark_stream.wire import (
    access_messages,
    cluster_messages,
    consumer_messages,
    lake_messages,
    stream_messages,
    topic_messages,
    transaction_messages,
)
from spark_stream.wire.messages import Call

_MODULES: Final = (
    topic_messages,
    stream_messages,
    cluster_messages,
    transaction_messages,
    consumer_messages,
    access_messages,
    lake_messages,
)

CALLS: Final[Mapping[str, type[Call[Any]]]] = {
    each.wire_name: each
    for module in _MODULES
    for each in vars(module).values()
    if isinstance(each, type) and issubclass(each, Call) and each.__module__ == module.__name__
}
