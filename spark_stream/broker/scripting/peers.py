"""The other brokers of a store: steps on the partitions that they lead.

One connection for each peer, used by one thread at a time. Every call has a deadline. A peer that
did not answer is not asked again for a moment, so that a sweep over many transactions does not wait
for it once for each.
"""

from __future__ import annotations

import ssl
import threading
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Final

import msgspec
from msgspec import Struct, field

from spark_stream.broker.node.identity import BrokerIdentity, Endpoint
from spark_stream.broker.node.members import Members
from spark_stream.broker.scripting.step_messages import answers_of, asked_of, pack_in_parts
from spark_stream.broker.scripting.step_table import Answer
from spark_stream.environment import Clock
from spark_stream.errors import (
    InvalidRequest,
    IsologError,
    LeaderUnavailable,
    TlsFailed,
    Unauthenticated,
)
from spark_stream.scripts.steps import ProbeReplica, ReadLed, RemoteStep
from spark_stream.transport.client import ClientChannel
from spark_stream.transport.streams import TRANSPORT_ERRORS, failure_of
from spark_stream.wire.messages import RUN_STEPS

_CALL_S: Final = 10.0  # markers of a large transaction on a busy disk
_PROBE_S: Final = 2.0  # a broker that is to lead next answers soon, or another one leads
_PROBE_EACH_S: Final = 0.01  # more for each replica that is probed
_PAUSE_S: Final = 1.0


class _Peer(Struct):
    """What is known of one broker; ``lock`` is held during a call."""

    lock: threading.Lock = field(default_factory=threading.Lock)
    endpoint: Endpoint | None = None
    channel: ClientChannel | None = None
    silent_until: float = 0.0
    refusal: LeaderUnavailable | None = None  # why it is not asked until then

    def disconnect(self) -> None:
        """Close the connection; the next call opens another one."""
        channel, self.channel = self.channel, None
        if channel is not None:
            channel.close()


class ConnectedPeers:
    """The brokers that are registered.

    ``refresh`` reads the records again. ``addresses``: addresses of brokers by id, used instead of
    the registered ones.
    """

    def __init__(
        self,
        me: BrokerIdentity,
        members: Members,
        clock: Clock,
        refresh: Callable[[], None],
        addresses: Mapping[str, str] | None = None,
        tls: Callable[[], ssl.SSLContext | None] = lambda: None,
    ) -> None:
        self._tls = tls
        self._me = me
        self._members = members
        self._clock = clock
        self._refresh = refresh
        self._addresses = addresses or {}
        self._lock = threading.Lock()
        self._peers: dict[str, _Peer] = {}

    def endpoint_of(self, broker_id: str) -> Endpoint | None:
        """Return where the broker is reached, or None if it registered no address for that."""
        known = self._members.get(broker_id)
        address = None if known is None else self._addresses.get(broker_id, known.peer_address)
        if known is None or not address:
            return None
        return Endpoint(address, known.incarnation)

    def run_steps(self, broker_id: str, steps: Sequence[RemoteStep]) -> list[Answer]:
        """Have the broker run the steps; return its answers.

        Raises:
            LeaderUnavailable: the broker does not answer, another process does, or it refuses the
                message. The steps may have run or not: each can be repeated.
        """
        with self._lock:
            peer = self._peers.setdefault(broker_id, _Peer())
        answers: list[Answer] = []
        for part, packed in pack_in_parts(steps):
            answers += self._run_part(peer, broker_id, part, packed)
        return answers

    def _run_part(
        self, peer: _Peer, broker_id: str, steps: Sequence[RemoteStep], packed: msgspec.Raw
    ) -> list[Answer]:
        endpoint = self.endpoint_of(broker_id)
        if endpoint is None:
            raise LeaderUnavailable(
                f"broker {broker_id} is not registered, or does not listen for brokers",
                leader=broker_id,
            )
        while True:
            try:
                with self._hold(peer, broker_id, endpoint):
                    return self._ask(peer, broker_id, endpoint, steps, packed)
            except Unauthenticated as error:
                # It may have started again a moment ago: then the proof was for its last start.
                self._refresh()
                now = self.endpoint_of(broker_id)
                if now is None or now == endpoint:
                    with self._hold(peer, broker_id, endpoint):
                        raise self._silence(peer, broker_id, endpoint, error) from error
                endpoint = now

    @contextmanager
    def _hold(self, peer: _Peer, broker_id: str, endpoint: Endpoint) -> Iterator[None]:
        """Hold the peer's lock; LeaderUnavailable if it is not to be asked at present."""
        if not peer.lock.acquire(timeout=_CALL_S):
            where = f"broker {broker_id} at {endpoint.address}"
            raise LeaderUnavailable(f"{where} is busy", leader=broker_id)
        try:
            if peer.endpoint != endpoint:
                peer.disconnect()
                peer.endpoint, peer.refusal = endpoint, None
            if peer.refusal is not None and self._clock.monotonic() < peer.silent_until:
                raise peer.refusal.again()  # in the same words, so that it is logged once
            yield
        finally:
            peer.lock.release()

    def _ask(
        self,
        peer: _Peer,
        broker_id: str,
        endpoint: Endpoint,
        steps: Sequence[RemoteStep],
        packed: msgspec.Raw,
    ) -> list[Answer]:
        nonce = uuid.uuid4().hex
        asked = asked_of(self._me, broker_id, endpoint.incarnation, nonce, packed)
        try:
            result = self._answer(peer, endpoint.address, asked, _patience_s(steps))
        except TlsFailed as error:
            raise self._silence(peer, broker_id, endpoint, error) from error
        except TRANSPORT_ERRORS as error:
            mine = failure_of(error, endpoint.address)
            if isinstance(mine, Unauthenticated):
                raise mine from None
            if isinstance(mine, InvalidRequest):  # what was asked is wrong: the peer has answered
                raise _unavailable(broker_id, endpoint, mine) from None
            raise self._silence(peer, broker_id, endpoint, mine) from None
        return answers_of(result, self._me, broker_id, nonce, steps)

    def _answer(self, peer: _Peer, address: str, asked: bytes, patience_s: float) -> bytes:
        if peer.channel is None or not peer.channel.is_usable:
            peer.channel = ClientChannel(address, timeout_s=patience_s, tls=self._tls())
        return bytes(peer.channel.call(RUN_STEPS, b"", asked, patience_s).body)

    def _silence(
        self, peer: _Peer, broker_id: str, endpoint: Endpoint, error: IsologError
    ) -> IsologError:
        """Ask the peer nothing for a moment; return the error that says why."""
        peer.disconnect()
        peer.silent_until = self._clock.monotonic() + _PAUSE_S
        peer.refusal = _unavailable(broker_id, endpoint, error)
        return peer.refusal.again()


def _unavailable(broker_id: str, endpoint: Endpoint, error: IsologError) -> LeaderUnavailable:
    where = f"broker {broker_id} at {endpoint.address}"
    return LeaderUnavailable(f"{where}: {error.message}", leader=broker_id)


def _patience_s(steps: Sequence[RemoteStep]) -> float:
    """Return how many seconds to wait for the answers to these steps."""
    if all(isinstance(step, ProbeReplica | ReadLed) for step in steps):
        return min(_CALL_S, _PROBE_S + _PROBE_EACH_S * len(steps))
    return _CALL_S
