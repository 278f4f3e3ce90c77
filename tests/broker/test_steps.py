"""Steps and their answers travel between brokers as they are."""

from __future__ import annotations

import numpy as np
import pytest

from spark_stream.broker.identity import Identity
from spark_stream.broker.steps import answers_of, facts_of, run_steps, step_of
from spark_stream.cluster.identity import ClusterSecret
from spark_stream.consistency.election import LogEnd
from spark_stream.consistency.extents import Block, SpansSnapshot
from spark_stream.consistency.ids import BrokerId, EntryIndex, Generation, LeaderEpoch, Offset
from spark_stream.consistency.isolation import Bounds
from spark_stream.consistency.transactions import Joined
from spark_stream.errors import InvalidRequest, IsologError, Unauthenticated, UnknownTopic
from spark_stream.scripts import steps
from spark_stream.scripts.steps import (
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
from spark_stream.wire.step_messages import RunSteps, StepAnswer, StepAnswers, StepFacts

A, B = BrokerId("a"), BrokerId("b")
SECRET = ClusterSecret(b"s" * 32)
CALLER, CALLED = (Identity("c", each, f"start of {each}", SECRET) for each in (A, B))
AT = Joined("flights", "id", 3)
STEPS = (
    Seal(AT, 7),
    Seal(AT, 7, least_epoch=LeaderEpoch(3)),
    WriteMarkers(AT, 7, (1, 2), least_epoch=LeaderEpoch(3)),
    WriteMarkers(AT, 7, ()),
    IsReplicated(AT, EntryIndex(9), LeaderEpoch(2)),
    DropBranch(AT, 7, 1),
    Force(AT),
    ReadBounds(AT),
    ReadExtents(AT),
    Describe(AT),
    MakeFolder(B, "flights", "id"),
    ReadLogEnd(B, AT),
    ForceReplica(B, AT),
    ProbeReplica(B, AT),
)
BOUNDS = Bounds(Offset(1), Offset(2), Offset(3), Offset(4))
ANSWERS = (
    None,
    True,
    False,
    BOUNDS,
    Marked(EntryIndex(5), LeaderEpoch(1), True),
    Marked(EntryIndex(0), LeaderEpoch(0), False),
    LogEnd(Generation("g"), -1, EntryIndex(0)),
    LogEnd(Generation("g"), 3, EntryIndex(10)),
    Described(BOUNDS, LeaderEpoch(2), EntryIndex(6), 1_000, 2, {BrokerId("f"): EntryIndex(4)}),
    Described(BOUNDS, LeaderEpoch(2), EntryIndex(6), 1_000, 2, {}, hw_known=False),
)


class Table:
    """Answers what it was given, or raises it."""

    def __init__(self, *answers: object) -> None:
        self._answers = list(answers)
        self.asked: list[object] = []

    def run_here(self, step: object) -> object:
        self.asked.append(step)
        answer = self._answers.pop(0)
        if isinstance(answer, IsologError):
            raise answer
        return answer


def travelled(*answers: object) -> list[object]:
    """The answers, after they came back from another broker."""
    asked = asking(*(Force(AT) for _ in answers))
    message, columns = run_steps(Table(*answers), CALLED, RunSteps.from_bytes(asked.to_bytes()))
    return answers_of([message.to_bytes(), *columns], CALLER, asked, "b")


def asking(*steps: object, **fields: str) -> RunSteps:
    """What broker a asks of broker b."""
    proven = {"caller": "a", "proof": CALLER.call_proof("b", "start of b"), "nonce": "n"}
    return RunSteps(**(proven | fields), steps=[facts_of(each) for each in steps])


@pytest.mark.parametrize("step", STEPS, ids=str)
def test_a_step_is_the_same_there(step):
    facts = StepFacts.from_bytes(facts_of(step).to_bytes())
    assert step_of(facts, B) == step


def test_every_step_of_a_partition_or_a_broker_can_travel():
    kinds = {
        each
        for each in vars(steps).values()
        if isinstance(each, type)
        and issubclass(each, PartitionStep | BrokerStep)
        and each not in (PartitionStep, BrokerStep)
    }
    assert kinds == {type(each) for each in STEPS}


@pytest.mark.parametrize("kind", ["seal", "write-markers", "drop-branch", "is-replicated"])
def test_a_step_that_lacks_a_field_is_refused_by_its_name(kind):
    with pytest.raises(InvalidRequest, match=f"{kind} needs a"):
        step_of(StepFacts(kind=kind, topic="t", topic_id="id"), B)


@pytest.mark.parametrize("answer", ANSWERS, ids=str)
def test_an_answer_is_the_same_here(answer):
    assert travelled(answer) == [answer]


def test_extents_and_errors_come_back_beside_other_answers():
    block = Block(*(np.array(each) for each in ([7, 8], [1, 2], [0, 10], [9, 19])))
    extents = SpansSnapshot((block,), {})
    error = UnknownTopic("there is no topic 't'", topic="t")
    first, refusal, bounds, second = travelled(extents, error, BOUNDS, SpansSnapshot((), {}))
    (found,) = first.blocks
    for one, other in zip(vars_of(found), vars_of(block), strict=True):
        assert one.tolist() == other.tolist()
    assert isinstance(refusal, UnknownTopic)
    assert refusal.details == {"topic": "t"}
    assert bounds == BOUNDS
    assert second.blocks == ()


def vars_of(block: Block) -> list[np.ndarray]:
    return [block.transactions, block.producers, block.firsts, block.lasts]


def test_a_step_that_fails_holds_up_no_other():
    table = Table(UnknownTopic("gone"), True)
    run_steps(table, CALLED, asking(Force(AT), Seal(AT, 1)))
    assert table.asked == [Force(AT), Seal(AT, 1)]


@pytest.mark.parametrize(
    "fields",
    [
        {"proof": ""},
        {"proof": CALLER.call_proof("b", "an earlier start of b")},
        {"proof": CALLER.call_proof("c", "start of b")},
        {"proof": Identity("c", A, "i", ClusterSecret(b"x" * 32)).call_proof("b", "start of b")},
        {"caller": "c"},
    ],
)
def test_steps_are_carried_out_only_for_a_broker_that_means_this_start_of_this_one(fields):
    table = Table()
    with pytest.raises(Unauthenticated, match="broker b as it runs now"):
        run_steps(table, CALLED, asking(Force(AT), **fields))
    assert table.asked == []


def test_answers_of_something_else_in_the_place_of_a_broker_are_refused():
    asked = asking(Seal(AT, 1))
    other = asking(Seal(AT, 1), nonce="another")
    for proof in ("", CALLED.answer_proof("another"), CALLER.answer_proof("n")):
        said = StepAnswers(proof=proof, answers=[StepAnswer()])
        with pytest.raises(Unauthenticated, match="in the place of broker b"):
            answers_of([said.to_bytes()], CALLER, asked, "b")
    replayed, _ = run_steps(Table(None), CALLED, other)
    with pytest.raises(Unauthenticated):
        answers_of([replayed.to_bytes()], CALLER, asked, "b")
