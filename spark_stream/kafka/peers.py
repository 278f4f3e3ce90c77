"""The gateways of a cluster: their ids, which of them are alive, and the tasks of each.

Kafka's clients see every gateway as a broker, for some minutes also one that does not answer.
Rendezvous hashing over the live gateways selects the leader of each partition. So the end of a
gateway moves only its own partitions. All groups and transactions have one gateway as their
coordinator.
The gateways have no state in common, so a client may use any of them, also during a change.
"""

from __future__ import annotations

import hashlib
import socket
import ssl
import struct
import threading
import time
from collections.abc import Iterable, Sequence
from contextlib import closing
from typing import Final

from msgspec import Struct

from spark_stream.loggers import logger_of
from spark_stream.wire.addresses import joined, split_address

logger = logger_of(__name__)

PROBE_S: Final = 1.0
"""The interval between two probes of a gateway."""

KEPT_S: Final = 900.0
"""The time for which the metadata has a gateway that does not answer.

librdkafka has an unused coordinator in its cache for so long (``metadata.max.age.ms``), and waits
without end for one that is missing in the metadata (its issue 5511).
"""

_ANSWER_S: Final = 2.0
_FAILURES: Final = 2
"""The number of failed probes in sequence after which a gateway counts as dead."""

_ID_BITS: Final = 0x3FFFFFFF  # Java's clients subtract ids of coordinators from 2^31 - 1
_HEADER: Final = struct.Struct(">ihhih")
_API_VERSIONS_KEY: Final = 18
_COORDINATOR: Final = "coordinator"


class GatewayAddress(Struct, frozen=True):
    """The address of a gateway for its clients."""

    host: str
    port: int

    @property
    def node_id(self) -> int:
        """The id of the gateway as a broker, the same in all answers."""
        return _hashed(str(self)) & _ID_BITS

    def __str__(self) -> str:
        """Return ``host:port``."""
        return joined(self.host, self.port)

    @classmethod
    def parse(cls, text: str) -> GatewayAddress:
        """Return the address in ``host:port``. Raise ValueError for other texts."""
        return cls(*split_address(text))


class Gateways:
    """All gateways of a cluster. A thread probes the others until :meth:`close`. Thread-safe.

    Args:
        own: The address of this gateway, which is always alive.
        others: The addresses of the others.
        has_tls: Whether the gateways accept connections with TLS only.
    """

    def __init__(
        self, own: GatewayAddress, others: Iterable[GatewayAddress] = (), *, has_tls: bool = False
    ) -> None:
        self.own = own
        """The address of this gateway."""
        self._others = tuple(each for each in dict.fromkeys(others) if each != own)
        self._failures = dict.fromkeys(self._others, 0)
        self._answered = dict.fromkeys(self._others, time.monotonic())
        self._tls = _unverified() if has_tls else None
        self._alive: Sequence[GatewayAddress] = self._found_alive()
        self._closed = threading.Event()
        if self._others:
            threading.Thread(target=self._probe_all, name="isolog-kafka-peers", daemon=True).start()

    def close(self) -> None:
        """End the probes."""
        self._closed.set()

    @property
    def listed(self) -> Sequence[GatewayAddress]:
        """The gateways in the metadata, in the order of their ids."""
        since = time.monotonic() - KEPT_S
        recent = {each for each, at in self._answered.items() if at > since}
        return sorted(recent.union(self._alive), key=lambda each: each.node_id)

    def leader(self, topic: str, partition: int) -> GatewayAddress:
        """Return the gateway that leads a partition for Kafka's clients."""
        return _chosen(self._alive, f"{topic}/{partition}")

    @property
    def coordinator(self) -> GatewayAddress:
        """The gateway that coordinates all groups and transactions."""
        return _chosen(self._alive, _COORDINATOR)

    def _found_alive(self) -> list[GatewayAddress]:
        answering = (each for each, failed in self._failures.items() if failed < _FAILURES)
        return [self.own, *answering]

    def _probe_all(self) -> None:
        while not self._closed.wait(PROBE_S):
            for each in self._others:
                try:
                    probe(each, self._tls)
                except (OSError, ValueError) as error:  # a name may be none
                    self._failures[each] += 1
                    if self._failures[each] == _FAILURES:
                        logger.warning("the gateway at %s does not answer: %s", each, error)
                else:
                    if self._failures[each] >= _FAILURES:
                        logger.info("the gateway at %s answers again", each)
                    self._failures[each] = 0
                    self._answered[each] = time.monotonic()
            self._alive = self._found_alive()


def probe(address: GatewayAddress, tls: ssl.SSLContext | None = None) -> None:
    """Send a gateway a request that needs no login. Raise OSError if it does not answer."""
    with closing(socket.create_connection((address.host, address.port), _ANSWER_S)) as plain:
        plain.settimeout(_ANSWER_S)
        with closing(plain if tls is None else tls.wrap_socket(plain)) as sock:
            sock.sendall(_HEADER.pack(_HEADER.size - 4, _API_VERSIONS_KEY, 0, 0, -1))
            if not sock.recv(1):
                raise ConnectionError("it closed the connection")


def _chosen(gateways: Sequence[GatewayAddress], key: str) -> GatewayAddress:
    return max(gateways, key=lambda each: _hashed(f"{key} {each}"))


def _hashed(text: str) -> int:
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest())


def _unverified() -> ssl.SSLContext:
    """Return TLS settings for a probe, which sends and trusts no data."""
    context = ssl.create_default_context()
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    return context
