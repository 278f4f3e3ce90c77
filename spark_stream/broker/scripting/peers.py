"""The other brokers of a store: steps on the partitions that they lead, and the messages for these.

Each peer has one connection, used by one thread at a time. Every call has a deadline. A peer that
did not answer is not called again for a moment, so that a sweep over many transactions does not
wait for it once for each.

A step travels as it is, in MessagePack, and its answer as the type that the step's class names. An
answer is accepted only from a process that proves to be the called broker.
"""

from __future__ import annotations

import ssl
import threading
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import reduce
from operator import or_
from typing import Any, Final, get_args

import msgspec
import numpy as np

from spark_stream.broker.node.identity import BrokerIdentity, Endpoint
from spark_stream.broker.node.members import Members
from spark_stream.broker.scripting.driver import REMOTE_STEPS, Answer, StepTable
from spark_stream.consistency.partition.atomic_cuts import Block, SpansSnapshot
from spark_stream.environment import Clock
from spark_stream.errors import (
    InternalError,
    InvalidRequest,
    IsologError,
    LeaderUnavailable,
    TlsFailed,
    Unauthenticated,
)
from spark_stream.scripts.steps import ProbeReplica, ReadLed, RemoteStep
from spark_stream.structs import Struct
from spark_stream.transport.client import ClientChannel
from spark_stream.transport.streams import TRANSPORT_ERRORS, failure_of
from spark_stream.wire.limits import CONTROL_BYTES_MAX
from spark_stream.wire.messages import RUN_STEPS, decoded, from_plain, to_plain

_CALL_S: Final = 10.0  # markers of a large transaction on a busy disk
_PROBE_S: Final = 2.0  # a broker that is to lead next answers soon, or another one leads
_PROBE_EACH_S: Final = 0.01  # more for each replica that is probed
_PAUSE_S: Final = 1.0


class _Peer(msgspec.Struct):
    """The connection and the state of one broker. ``lock`` is held during a call."""

    lock: threading.Lock = msgspec.field(default_factory=threading.Lock)
    endpoint: Endpoint | None = None
    channel: ClientChannel | None = None
    silent_until: float = 0.0
    refusal: LeaderUnavailable | None = None  # the reason for the pause

    def disconnect(self) -> None:
        """Close the connection. The next call opens another one."""
        channel, self.channel = self.channel, None
        if channel is not None:
            channel.close()


class ConnectedPeers:
    """The registered brokers.

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
        """Return the broker's address and incarnation, or None without an address for peers."""
        known = self._members.get(broker_id)
        address = None if known is None else self._addresses.get(broker_id, known.peer_address)
        if known is None or not address:
            return None
        return Endpoint(address, known.incarnation)

    def run_steps(self, broker_id: str, steps: Sequence[RemoteStep]) -> list[Answer]:
        """Have the broker run the steps. Return its answers.

        Raises:
            LeaderUnavailable: The broker does not answer, another process does, or it refuses the
                message. The steps may have run or not. Each can be repeated.
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
                f"broker {broker_id} is not registered, or does not listen for other brokers",
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
        """Hold the peer's lock.

        Raises:
            LeaderUnavailable: Calls to the peer are paused, or it is busy.
        """
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
            if isinstance(mine, InvalidRequest):  # the request is wrong: the peer has answered
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
        """Pause calls to the peer for a moment. Return the error with the reason."""
        peer.disconnect()
        peer.silent_until = self._clock.monotonic() + _PAUSE_S
        peer.refusal = _unavailable(broker_id, endpoint, error)
        return peer.refusal.again()


def _unavailable(broker_id: str, endpoint: Endpoint, error: IsologError) -> LeaderUnavailable:
    where = f"broker {broker_id} at {endpoint.address}"
    return LeaderUnavailable(f"{where}: {error.message}", leader=broker_id)


def _patience_s(steps: Sequence[RemoteStep]) -> float:
    """Return the timeout of a call with these steps, in seconds."""
    if all(isinstance(step, ProbeReplica | ReadLed) for step in steps):
        return min(_CALL_S, _PROBE_S + _PROBE_EACH_S * len(steps))
    return _CALL_S


_PART_BYTES_MAX: Final = CONTROL_BYTES_MAX // 4
"""A bound on the steps in one message: it has an envelope too, and its answer must come in time."""


class RunSteps(Struct):
    """Steps of ``caller``, a broker, for another one. All are refused if ``proof`` is wrong.

    ``nonce``: made for this call, and covered by the answers' proof. ``steps`` are read after the
    proof.
    """

    caller: str
    proof: str
    nonce: str
    steps: msgspec.Raw


class StepAnswer(Struct):
    """The outcome of a step: an error, or its answer."""

    error: IsologError | None = None
    value: msgspec.Raw = msgspec.Raw()


class StepAnswers(Struct):
    """The answers, in the order of the steps. ``proof``: a broker of the cluster sent them."""

    proof: str
    answers: list[StepAnswer]


def asked_of(
    me: BrokerIdentity, broker: str, incarnation: str, nonce: str, steps: msgspec.Raw
) -> bytes:
    """Return the message that sends the packed steps to the broker, in this incarnation."""
    proof = me.call_proof(broker, incarnation)
    return _ENCODER.encode(RunSteps(caller=me.broker_id, proof=proof, nonce=nonce, steps=steps))


def pack_in_parts(
    steps: Sequence[RemoteStep],
) -> Iterator[tuple[Sequence[RemoteStep], msgspec.Raw]]:
    """Yield the steps in their order, a part for each message, with their packed form.

    The markers of many producers of a transaction in many partitions do not fit in one message.
    """
    packed = pack_steps(steps)
    if len(bytes(packed)) <= _PART_BYTES_MAX or len(steps) == 1:
        yield steps, packed
        return
    middle = len(steps) // 2
    yield from pack_in_parts(steps[:middle])
    yield from pack_in_parts(steps[middle:])


def pack_steps(steps: Sequence[RemoteStep]) -> msgspec.Raw:
    """Return steps in their form on the wire."""
    return msgspec.Raw(_ENCODER.encode(steps))


def unpack_steps(packed: msgspec.Raw) -> list[RemoteStep]:
    """Return the steps of a message.

    Raises:
        InvalidRequest: The message cannot be read.
    """
    found: list[RemoteStep] = decoded(bytes(packed), _STEPS, "RunSteps: steps")
    return found


def run_steps(
    table: StepTable, me: BrokerIdentity, asked: bytes, names: Sequence[str] = ()
) -> bytes:
    """Carry out steps that another broker sent. Each has its own answer.

    ``names``: those in the caller's certificate, if it has shown one.

    Raises:
        Unauthenticated: The caller is no broker of this cluster, or means another broker.
        InvalidRequest: The message cannot be read.
    """
    call: RunSteps = decoded(asked, _CALLS, "RunSteps")
    me.check_caller(call.caller, call.proof, names)
    answers = [_answer(table, step) for step in unpack_steps(call.steps)]
    return _ENCODER.encode(StepAnswers(proof=me.answer_proof(call.nonce), answers=answers))


def _answer(table: StepTable, step: RemoteStep) -> StepAnswer:
    try:
        return StepAnswer(value=msgspec.Raw(_ENCODER.encode(table.run_here(step))))
    except IsologError as error:
        return StepAnswer(error=error)


def answers_of(
    result: bytes, me: BrokerIdentity, broker: str, nonce: str, steps: Sequence[RemoteStep]
) -> list[Answer]:
    """Return the broker's answers to the steps that were sent with this nonce.

    Raises:
        Unauthenticated: another process has answered.
    """
    try:
        found = _ANSWERS.decode(result)
        me.check_answer(broker, nonce, found.proof)
        if len(found.answers) != len(steps):
            raise InternalError(f"{len(found.answers)} answers to {len(steps)} steps")
        return [
            _ANSWERS_TO[type(step)].decode(each.value) if each.error is None else each.error
            for step, each in zip(steps, found.answers, strict=True)
        ]
    except ValueError as error:
        raise InternalError(f"broker {broker} sent an invalid answer: {error}") from None


def _to_plain(value: Any) -> Any:
    return extents_to_bytes(value) if isinstance(value, SpansSnapshot) else to_plain(value)


def _from_plain(kind: type, value: Any) -> Any:
    return extents_from_bytes(value) if kind is SpansSnapshot else from_plain(kind, value)


def _answers_to(step: Any) -> msgspec.msgpack.Decoder[Any]:
    """Return the decoder of the answers to a kind of step, whose class names their type."""
    (kind,) = get_args(step.__orig_bases__[0])
    return msgspec.msgpack.Decoder(kind, dec_hook=_from_plain)


_ENCODER: Final = msgspec.msgpack.Encoder(enc_hook=_to_plain)
_CALLS: Final = msgspec.msgpack.Decoder(RunSteps)
# Made at import: two threads in which msgspec inspects the same types crash the process.
_ANSWERS_TO: Final = {step: _answers_to(step) for step in REMOTE_STEPS}
_KINDS: Any = reduce(or_, REMOTE_STEPS)
_STEPS: Final[msgspec.msgpack.Decoder[Any]] = msgspec.msgpack.Decoder(list[_KINDS])
_ANSWERS: Final = msgspec.msgpack.Decoder(StepAnswers, dec_hook=_from_plain)


def extents_to_bytes(found: SpansSnapshot) -> bytes:
    """Return the extents as four little-endian int64 columns, one after the other.

    They are transaction, producer id, first and last offset.
    """
    names = ("transactions", "producers", "firsts", "lasts")
    columns = [
        np.concatenate([getattr(block, name) for block in found.blocks] or [np.empty(0, "<i8")])
        for name in names
    ]
    return np.stack(columns).astype("<i8").tobytes()


def extents_from_bytes(data: bytes) -> SpansSnapshot:
    """Return the extents that :func:`extents_to_bytes` wrote."""
    columns = np.frombuffer(data, "<i8").astype(np.int64).reshape(4, -1)
    blocks = (Block(*columns),) if columns.shape[1] else ()
    return SpansSnapshot(blocks, {})
