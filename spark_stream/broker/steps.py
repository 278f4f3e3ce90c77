"""Steps of scripts as they travel between brokers: from a step to its message and back."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import numpy as np

from spark_stream.broker.step_table import Answer, StepTable
from spark_stream.consistency.extents import Block, SpansSnapshot
from spark_stream.consistency.ids import Offset
from spark_stream.consistency.isolation import Bounds
from spark_stream.consistency.transactions import Joined
from spark_stream.errors import InternalError, InvalidRequest, IsologError, NotLeader, from_wire
from spark_stream.scripts.steps import (
    DropBranch,
    Force,
    PartitionStep,
    ReadBounds,
    ReadExtents,
    Seal,
    WriteMarkers,
)
from spark_stream.wire.messages import BoundsFacts
from spark_stream.wire.step_messages import RunSteps, StepAnswer, StepAnswers, StepFacts, StepKind

_KINDS: Final[dict[type[PartitionStep], StepKind]] = {
    Seal: "seal",
    WriteMarkers: "write-markers",
    DropBranch: "drop-branch",
    Force: "force",
    ReadBounds: "read-bounds",
    ReadExtents: "read-extents",
}


def run_steps(table: StepTable, broker_id: str, asked: RunSteps) -> tuple[StepAnswers, list[bytes]]:
    """Carries out steps that another broker sent; each is answered by itself.

    Raises:
        NotLeader: they are meant for another broker, which had this one's address before.
    """
    if asked.broker_id != broker_id:
        raise NotLeader(f"this is broker {broker_id}, not {asked.broker_id}", leader="")
    answers: list[StepAnswer] = []
    columns: list[bytes] = []
    for facts in asked.steps:
        try:
            answer = table.run_here(step_of(facts))
        except IsologError as error:
            answers.append(StepAnswer(error=error.to_wire()))
            continue
        if isinstance(answer, SpansSnapshot):
            answers.append(StepAnswer(has_extents=True))
            columns.append(extents_to_bytes(answer))
        else:
            bounds = _facts_of(answer) if isinstance(answer, Bounds) else None
            answers.append(StepAnswer(bounds=bounds))
    return StepAnswers(answers=answers), columns


def facts_of(step: PartitionStep) -> StepFacts:
    """A step as it travels."""
    taken = step.taken if isinstance(step, WriteMarkers) else ()
    return StepFacts(
        kind=_KINDS[type(step)],
        topic=step.at.topic,
        topic_id=step.at.topic_id,
        partition=step.at.partition,
        transaction=getattr(step, "transaction", None),
        producer_id=getattr(step, "producer_id", None),
        taken=taken,
    )


def step_of(facts: StepFacts) -> PartitionStep:
    """The step that travelled; InvalidRequest if it lacks a field of its kind."""
    at = Joined(facts.topic, facts.topic_id, facts.partition)
    number, producer = facts.transaction, facts.producer_id
    if facts.kind == "force":
        return Force(at)
    if facts.kind == "read-bounds":
        return ReadBounds(at)
    if facts.kind == "read-extents":
        return ReadExtents(at)
    if number is None:
        raise InvalidRequest(f"{facts.kind} needs a transaction", field="transaction")
    if facts.kind == "seal":
        return Seal(at, number)
    if facts.kind == "write-markers":
        return WriteMarkers(at, number, facts.taken)
    if producer is None:
        raise InvalidRequest("drop-branch needs a producer_id", field="producer_id")
    return DropBranch(at, number, producer)


def answers_of(results: Sequence[bytes], count: int) -> list[Answer]:
    """The answers to ``count`` steps, from the results of the action."""
    found = StepAnswers.from_bytes(results[0]).answers
    columns = iter(results[1:])
    if len(found) != count:
        raise InternalError(f"{count} steps have {len(found)} answers")
    return [_answer_of(each, columns) for each in found]


def _answer_of(answer: StepAnswer, columns: Any) -> Answer:
    if answer.error is not None:
        return from_wire(answer.error)
    if answer.has_extents:
        return extents_from_bytes(next(columns))
    if answer.bounds is None:
        return None
    found = answer.bounds
    return Bounds(
        log_start_offset=Offset(found.log_start_offset),
        last_stable_offset=Offset(found.last_stable_offset),
        high_watermark=Offset(found.high_watermark),
        log_end_offset=Offset(found.log_end_offset),
    )


def _facts_of(bounds: Bounds) -> BoundsFacts:
    return BoundsFacts(
        log_start_offset=bounds.log_start_offset,
        last_stable_offset=bounds.last_stable_offset,
        high_watermark=bounds.high_watermark,
        log_end_offset=bounds.log_end_offset,
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
