"""The other brokers of a store, by Flight: steps on the partitions that they lead.

One client for each peer, used by one thread at a time. Every call has a deadline. A peer that did
not answer is not asked again for a moment, so that a sweep over many transactions does not wait for
it once for each.
"""

from __future__ import annotations

import threading
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Final

import pyarrow as pa
import pyarrow.flight as fl

from spark_stream.broker.identity import Endpoint, Identity
from spark_stream.broker.members import Members
from spark_stream.broker.step_table import Answer
from spark_stream.broker.steps import answers_of, asked_of
from spark_stream.environment import Clock
from spark_stream.errors import IsologError, LeaderUnavailable, Unauthenticated
from spark_stream.scripts.steps import ProbeReplica, RemoteStep
from spark_stream.wire.addresses import location
from spark_stream.wire.flight import from_flight

RUN_STEPS: Final = "run-steps"
_CALL_S: Final = 10.0  # markers of a large transaction on a busy disk
_PROBE_S: Final = 2.0  # a broker that is to lead next answers soon, or another one leads
_PROBE_EACH_S: Final = 0.01  # more for each replica that is probed
_PAUSE_S: Final = 1.0


@dataclass
class _Peer:
    """What is known of one of them; ``lock`` is held during a call."""

    lock: threading.Lock = field(default_factory=threading.Lock)
    endpoint: Endpoint | None = None
    client: fl.FlightClient | None = None
    silent_until: float = 0.0
    refusal: LeaderUnavailable | None = None  # why it is not asked until then


class FlightPeers:
    """The brokers that are registered.

    ``refresh`` reads the records anew. ``addresses``: where some of them are reached, by their ids;
    others where they have registered.
    """

    def __init__(
        self,
        me: Identity,
        members: Members,
        clock: Clock,
        refresh: Callable[[], None],
        addresses: Mapping[str, str] | None = None,
    ) -> None:
        self._me = me
        self._members = members
        self._clock = clock
        self._refresh = refresh
        self._addresses = addresses or {}
        self._lock = threading.Lock()
        self._peers: dict[str, _Peer] = {}

    def endpoint_of(self, broker_id: str) -> Endpoint | None:
        """Return where the broker is reached, or None if it is not registered."""
        known = self._members.get(broker_id)
        if known is None:
            return None
        return Endpoint(self._addresses.get(broker_id, known.address), known.incarnation)

    def run_steps(self, broker_id: str, steps: Sequence[RemoteStep]) -> list[Answer]:
        """What the broker answers to each step.

        Raises:
            LeaderUnavailable: it does not answer, or another one does. What was asked may have
                happened or not: every step can be repeated.
        """
        with self._lock:
            peer = self._peers.setdefault(broker_id, _Peer())
        endpoint = self.endpoint_of(broker_id)
        if endpoint is None:
            raise LeaderUnavailable(f"broker {broker_id} is not registered", leader=broker_id)
        while True:
            try:
                with self._held(peer, broker_id, endpoint):
                    return self._asked(peer, broker_id, endpoint, steps)
            except Unauthenticated as error:
                # It may have started again a moment ago: then the proof was for its last start.
                self._refresh()
                now = self.endpoint_of(broker_id)
                if now is None or now == endpoint:
                    with self._held(peer, broker_id, endpoint):
                        raise self._silence(peer, broker_id, endpoint, error) from error
                endpoint = now

    @contextmanager
    def _held(self, peer: _Peer, broker_id: str, endpoint: Endpoint) -> Iterator[None]:
        """Hold the peer's lock; LeaderUnavailable if it is not to be asked at present."""
        if not peer.lock.acquire(timeout=_CALL_S):
            where = f"broker {broker_id} at {endpoint.address}"
            raise LeaderUnavailable(f"{where} is busy", leader=broker_id)
        try:
            if peer.endpoint != endpoint:
                peer.endpoint, peer.client, peer.refusal = endpoint, None, None
            if peer.refusal is not None and self._clock.monotonic() < peer.silent_until:
                raise peer.refusal.again()  # in the same words, so that it is logged once
            yield
        finally:
            peer.lock.release()

    def _asked(
        self, peer: _Peer, broker_id: str, endpoint: Endpoint, steps: Sequence[RemoteStep]
    ) -> list[Answer]:
        nonce = uuid.uuid4().hex
        asked = asked_of(self._me, broker_id, endpoint.incarnation, nonce, steps)
        options = fl.FlightCallOptions(timeout=_patience_s(steps))
        try:
            if peer.client is None:
                peer.client = fl.FlightClient(
                    location(endpoint.address),
                    generic_options=[("grpc.use_local_subchannel_pool", 1)],
                )
            action = fl.Action(RUN_STEPS, asked)
            (result,) = peer.client.do_action(action, options)
        except (pa.ArrowException, OSError) as error:
            mine = from_flight(error, endpoint.address)
            if isinstance(mine, Unauthenticated):
                raise mine from error
            raise self._silence(peer, broker_id, endpoint, mine) from error
        return answers_of(result.body.to_pybytes(), self._me, broker_id, nonce, steps)

    def _silence(
        self, peer: _Peer, broker_id: str, endpoint: Endpoint, error: IsologError
    ) -> IsologError:
        """Ask the peer nothing for a moment; return the error that says why."""
        where = f"broker {broker_id} at {endpoint.address}"
        peer.client = None
        peer.silent_until = self._clock.monotonic() + _PAUSE_S
        peer.refusal = LeaderUnavailable(f"{where}: {error.message}", leader=broker_id)
        return peer.refusal.again()


def _patience_s(steps: Sequence[RemoteStep]) -> float:
    """Return how many seconds to wait for the answers to these steps."""
    if all(isinstance(step, ProbeReplica) for step in steps):
        return min(_CALL_S, _PROBE_S + _PROBE_EACH_S * len(steps))
    return _CALL_S
