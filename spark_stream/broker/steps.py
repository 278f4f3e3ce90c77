"""Steps of scripts as they travel between brokers: from a step to its message and back."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Final

import numpy as np

from spark_stream.broker.driver import RemoteStep
from spark_stream.broker.identity import Identity
from spark_stream.broker.step_table import Answer, StepTable
from spark_stream.consistency.election import LogEnd
from spark_stream.consistency.extents import Block, SpansSnapshot
from spark_stream.consistency.ids import BrokerId, EntryIndex, Generation, LeaderEpoch
from spark_stream.consistency.isolation import Bounds
from spark_stream.consistency.transactions import Joined
from spark_stream.errors import InternalError, InvalidRequest, IsologError
from spark_stream.scripts.steps import (
    FIRST_EPOCH,
    BrokerStep,
    Describe,
    Described,
    DropBranch,
    Force,
    ForceReplica,
    IsReplicated,
    MakeFolder,
    Marked,
    PartitionStep,
    ProbeReplica,
    ReadBounds,
    ReadExtents,
    ReadLogEnd,
    Seal,
    WriteMarkers,
)
from spark_stream.wire.step_messages import (
    DescribedFacts,
    LogEndFacts,
    MarkedFacts,
    RunSteps,
    StepAnswer,
    StepAnswers,
    StepFacts,
    StepKind,
)

_KINDS: Final[dict[type[PartitionStep], StepKind]] = {
    Seal: "seal",
    WriteMarkers: "write-markers",
    IsReplicated: "is-replicated",
    DropBranch: "drop-branch",
    Force: "force",
    ReadBounds: "read-bounds",
    ReadExtents: "read-extents",
    Describe: "describe",
}
_OF_REPLICAS: Final[dict[type[BrokerStep], StepKind]] = {
    ReadLogEnd: "read-log-end",
    ForceReplica: "force-replica",
    ProbeReplica: "probe-replica",
}


def run_steps(table: StepTable, me: Identity, asked: RunSteps) -> tuple[StepAnswers, list[bytes]]:
    """Carry out steps that another broker sent; each is answered by itself.

    Raises:
        Unauthenticated: the caller is no broker of this cluster, or means another broker.
    """
    me.check_caller(asked.caller, asked.proof)
    answers: list[StepAnswer] = []
    columns: list[bytes] = []
    for facts in asked.steps:
        try:
            answer = table.run_here(step_of(facts, me.broker_id))
        except IsologError as error:
            answers.append(StepAnswer(error=error))
            continue
        if isinstance(answer, SpansSnapshot):
            columns.append(extents_to_bytes(answer))
        answers.append(_facts_of(answer))
    return StepAnswers(proof=me.answer_proof(asked.nonce), answers=answers), columns


def facts_of(step: RemoteStep) -> StepFacts:
    """A step as it travels."""
    if isinstance(step, MakeFolder):
        return StepFacts(kind="make-folder", topic=step.topic, topic_id=step.topic_id)
    kind: StepKind
    if isinstance(step, ReadLogEnd | ForceReplica | ProbeReplica):
        at, kind = step.at, _OF_REPLICAS[type(step)]
    else:
        assert isinstance(step, PartitionStep)
        at, kind = step.at, _KINDS[type(step)]
    return StepFacts(
        kind=kind,
        topic=at.topic,
        topic_id=at.topic_id,
        partition=at.partition,
        transaction=getattr(step, "transaction", None),
        producer_id=getattr(step, "producer_id", None),
        entry=getattr(step, "entry", None),
        leader_epoch=getattr(step, "leader_epoch", None),
        least_epoch=step.least_epoch if isinstance(step, PartitionStep) else FIRST_EPOCH,
        taken=step.taken if isinstance(step, WriteMarkers) else (),
    )


def step_of(facts: StepFacts, broker: BrokerId) -> RemoteStep:
    """The step that travelled to this broker; InvalidRequest if it lacks a field of its kind."""
    at = Joined(facts.topic, facts.topic_id, facts.partition)
    match facts.kind:
        case "make-folder":
            return MakeFolder(broker, facts.topic, facts.topic_id)
        case "read-log-end":
            return ReadLogEnd(broker, at)
        case "force-replica":
            return ForceReplica(broker, at)
        case "probe-replica":
            return ProbeReplica(broker, at)
        case _:
            return replace(_step_on(at, facts), least_epoch=LeaderEpoch(facts.least_epoch))


def _step_on(at: Joined, facts: StepFacts) -> PartitionStep:
    """The step on a partition, for a leader of any epoch."""
    match facts.kind:
        case "force":
            return Force(at)
        case "read-bounds":
            return ReadBounds(at)
        case "read-extents":
            return ReadExtents(at)
        case "describe":
            return Describe(at)
        case "is-replicated":
            entry, epoch = _field(facts, "entry"), _field(facts, "leader_epoch")
            return IsReplicated(at, EntryIndex(entry), LeaderEpoch(epoch))
        case "seal":
            return Seal(at, _field(facts, "transaction"))
        case "write-markers":
            return WriteMarkers(at, _field(facts, "transaction"), facts.taken)
        case "drop-branch":
            return DropBranch(at, _field(facts, "transaction"), _field(facts, "producer_id"))
        case _:
            raise AssertionError(facts.kind)


def _field(facts: StepFacts, name: str) -> int:
    value = getattr(facts, name)
    if value is None:
        raise InvalidRequest(f"{facts.kind} needs a {name}", field=name)
    return int(value)


def answers_of(results: Sequence[bytes], me: Identity, asked: RunSteps, of: str) -> list[Answer]:
    """Return the answers of broker ``of`` to what this one asked, from the results of the action.

    Raises:
        Unauthenticated: another process has answered.
    """
    answered = StepAnswers.from_bytes(results[0])
    me.check_answer(of, asked.nonce, answered.proof)
    found, count = answered.answers, len(asked.steps)
    columns = iter(results[1:])
    if len(found) != count:
        raise InternalError(f"{count} steps have {len(found)} answers")
    return [_answer_of(each, columns) for each in found]


def _facts_of(answer: Answer) -> StepAnswer:
    match answer:
        case SpansSnapshot():
            return StepAnswer(has_extents=True)
        case Bounds():
            return StepAnswer(bounds=answer)
        case bool():
            return StepAnswer(done=answer)
        case Marked():
            return StepAnswer(
                marked=MarkedFacts(
                    end=answer.end, leader_epoch=answer.leader_epoch, replicated=answer.replicated
                )
            )
        case LogEnd():
            return StepAnswer(
                log_end=LogEndFacts(
                    generation=answer.generation,
                    last_epoch=answer.last_epoch,
                    entries=answer.entries,
                )
            )
        case Described():
            return StepAnswer(bounds=answer.bounds, described=_described(answer))
        case _:
            return StepAnswer()


def _answer_of(answer: StepAnswer, columns: Iterator[bytes]) -> Answer:
    if answer.error is not None:
        return answer.error
    if answer.has_extents:
        return extents_from_bytes(next(columns))
    if answer.done is not None:
        return answer.done
    if answer.marked is not None:
        marked = answer.marked
        epoch = LeaderEpoch(marked.leader_epoch)
        return Marked(EntryIndex(marked.end), epoch, marked.replicated)
    if answer.log_end is not None:
        end = answer.log_end
        return LogEnd(Generation(end.generation), end.last_epoch, EntryIndex(end.entries))
    if answer.bounds is None:
        return None
    if answer.described is None:
        return answer.bounds
    seen = answer.described
    return Described(
        answer.bounds,
        LeaderEpoch(seen.leader_epoch),
        EntryIndex(seen.log_end),
        seen.size,
        seen.open_transactions,
        {BrokerId(each): EntryIndex(entry) for each, entry in seen.followers.items()},
        seen.hw_known,
    )


def _described(answer: Described) -> DescribedFacts:
    return DescribedFacts(
        leader_epoch=answer.leader_epoch,
        log_end=answer.log_end,
        size=answer.size,
        open_transactions=answer.open_transactions,
        followers={str(each): int(entry) for each, entry in answer.followers.items()},
        hw_known=answer.hw_known,
    )


def extents_to_bytes(found: SpansSnapshot) -> bytes:
    """The extents as four int64 columns."""
    names = ("transactions", "producers", "firsts", "lasts")
    columns = [
        np.concatenate([getattr(block, name) for block in found.blocks] or [np.empty(0, "<i8")])
        for name in names
    ]
    return np.stack(columns).astype("<i8").tobytes()


def extents_from_bytes(data: bytes) -> SpansSnapshot:
    """What :func:`extents_to_bytes` wrote."""
    columns = np.frombuffer(data, "<i8").astype(np.int64).reshape(4, -1)
    blocks = (Block(*columns),) if columns.shape[1] else ()
    return SpansSnapshot(blocks, {})
