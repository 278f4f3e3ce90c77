"""The connections of this process to brokers: one for each address and access.

All users of an access share its connections; those of another access have their own.

A connection is closed once nothing refers to its :class:`SharedChannel` any more. A forked process
starts without any.
"""

from __future__ import annotations

import weakref
from typing import Final

from msgspec.structs import replace

from spark_stream.client.connecting.access import Access
from spark_stream.errors import BrokerUnavailable
from spark_stream.transport.client import CLIENT_LIMITS, ClientChannel
from spark_stream.transport.failures import Greeting, failure_of, read_greeting
from spark_stream.transport.forks import in_child, new_lock
from spark_stream.transport.streams import ConnectionLost

# A broker that stops answering is given up after this time, however long its calls may take.
_LIMITS: Final = replace(CLIENT_LIMITS, heartbeat_s=2.0, silence_s=6.0)


class SharedChannel:
    """A connection to one broker, which others in this process may use as well."""

    def __init__(self, channel: ClientChannel, greeting: Greeting) -> None:
        self.channel = channel
        self.greeting = greeting
        weakref.finalize(self, channel.close).atexit = False


_lock = new_lock()
_channels: weakref.WeakValueDictionary[tuple[str, Access], SharedChannel] = (
    weakref.WeakValueDictionary()
)


@in_child
def _begin_anew() -> None:
    """Forget the parent's connections, in a child that was just forked."""
    global _channels
    _channels = weakref.WeakValueDictionary()


def shared_channel(address: str, access: Access, timeout_s: float) -> SharedChannel:
    """Return this process's connection to the broker at an address; connect if there is none.

    Raises:
        BrokerUnavailable: no broker is there, or no isolog broker.
        RequestTimeout: something is there but does not answer in ``timeout_s``.
        TlsFailed: the two sides do not agree on TLS.
        InvalidOption: a file of the access cannot be used.
    """
    found = _usable(address, access)
    if found is not None:
        return found
    try:
        channel = ClientChannel(address, timeout_s=timeout_s, limits=_LIMITS, tls=access.context())
    except ConnectionLost as error:
        if error.code == "TIMEOUT":
            raise failure_of(TimeoutError(), address) from error
        raise BrokerUnavailable(f"no broker answers at {error.message}", address=address) from error
    try:
        made = SharedChannel(channel, read_greeting(channel.greeting, address))
    except BrokerUnavailable:
        channel.close()
        raise
    with _lock:
        found = _usable(address, access)  # another thread may have connected meanwhile
        if found is not None:
            return found
        _channels[address, access] = made
    return made


def _usable(address: str, access: Access) -> SharedChannel | None:
    found = _channels.get((address, access))
    return found if found is not None and found.channel.is_usable else None
