"""Steps of scripts on their way to another broker, and their answers on their way back.

A step travels as it is, in MessagePack, and its answer as the type that the step's class names. An
answer is never taken from a process that does not prove to be the broker that was asked.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import reduce
from operator import or_
from typing import Any, Final, get_args

import msgspec
import numpy as np

from spark_stream.broker.node.identity import BrokerIdentity
from spark_stream.broker.scripting.step_table import REMOTE_STEPS, Answer, StepTable
from spark_stream.consistency.partition.atomic_cuts import Block, SpansSnapshot
from spark_stream.errors import InternalError, IsologError
from spark_stream.scripts.steps import RemoteStep
from spark_stream.structs import Struct
from spark_stream.wire.limits import CONTROL_BYTES_MAX
from spark_stream.wire.messages import decoded, from_plain, to_plain

_PART_BYTES_MAX: Final = CONTROL_BYTES_MAX // 4
"""A bound on the steps in one message: it has an envelope too, and its answer must come in time."""


class RunSteps(Struct):
    """Steps of ``caller``, a broker, for another one: all are refused if ``proof`` is wrong.

    ``nonce``: made for this call; the answers' proof covers it. ``steps`` are read after the proof.
    """

    caller: str
    proof: str
    nonce: str
    steps: msgspec.Raw


class StepAnswer(Struct):
    """What came of a step: an error, or its answer."""

    error: IsologError | None = None
    value: msgspec.Raw = msgspec.Raw()


class StepAnswers(Struct):
    """The answers, in the order of the steps; ``proof``: a broker of the cluster gives them."""

    proof: str
    answers: list[StepAnswer]


def asked_of(
    me: BrokerIdentity, broker: str, incarnation: str, nonce: str, steps: msgspec.Raw
) -> bytes:
    """Return the message that asks the broker, in this incarnation, for the packed steps."""
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
    """Return steps as they travel."""
    return msgspec.Raw(_ENCODER.encode(steps))


def unpack_steps(packed: msgspec.Raw) -> list[RemoteStep]:
    """Return what :func:`pack_steps` was given, or raise InvalidRequest."""
    found: list[RemoteStep] = decoded(bytes(packed), _STEPS, "RunSteps: steps")
    return found


def run_steps(
    table: StepTable, me: BrokerIdentity, asked: bytes, names: Sequence[str] = ()
) -> bytes:
    """Carry out steps that another broker sent; each is answered by itself.

    ``names``: those in the caller's certificate, if it has shown one.

    Raises:
        Unauthenticated: the caller is no broker of this cluster, or means another broker.
        InvalidRequest: the message cannot be read.
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
            raise InternalError(f"{len(steps)} steps have {len(found.answers)} answers")
        return [
            _ANSWERS_TO[type(step)].decode(each.value) if each.error is None else each.error
            for step, each in zip(steps, found.answers, strict=True)
        ]
    except ValueError as error:
        raise InternalError(f"broker {broker} sends an invalid answer: {error}") from None


def _to_plain(value: Any) -> Any:
    return extents_to_bytes(value) if isinstance(value, SpansSnapshot) else to_plain(value)


def _from_plain(kind: type, value: Any) -> Any:
    return extents_from_bytes(value) if kind is SpansSnapshot else from_plain(kind, value)


def _answers_to(step: Any) -> msgspec.msgpack.Decoder[Any]:
    """Return what decodes the answers to a kind of step, whose class names their type."""
    (kind,) = get_args(step.__orig_bases__[0])
    return msgspec.msgpack.Decoder(kind, dec_hook=_from_plain)


_ENCODER: Final = msgspec.msgpack.Encoder(enc_hook=_to_plain)
_CALLS: Final = msgspec.msgpack.Decoder(RunSteps)
# Made at import: two threads that let msgspec learn the same types crash the process.
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
    """Return what :func:`extents_to_bytes` wrote."""
    columns = np.frombuffer(data, "<i8").astype(np.int64).reshape(4, -1)
    blocks = (Block(*columns),) if columns.shape[1] else ()
    return SpansSnapshot(blocks, {})
