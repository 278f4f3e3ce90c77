"""Steps and their answers travel between brokers as they are."""

from __future__ import annotations

import msgspec
import numpy as np
import pytest

from isolog.errors import (
    InternalError,
    InvalidRequest,
    IsologError,
    Unauthenticated,
    UnknownTopic,
)
from spark_stream.broker.node.identity import BrokerIdentity
from spark_stream.broker.scripting.driver import REMOTE_STEPS
from spark_stream.broker.scripting.peers import (
    RunSteps,
    answers_of,
    asked_of,
    pack_steps,
    run_steps,
    unpack_steps,
)
from spark_stream.cluster.brokers import ClusterSecret
from spark_stream.consistency.control.election import LogEnd
from spark_stream.consistency.ids import BrokerId, EntryIndex, Generation, LeaderEpoch, Offset
from spark_stream.consistency.isolation import Bounds
from spark_stream.consistency.partition.atomic_cuts import Block, SpansSnapshot
from spark_stream.consistency.transactions.transactions import Joined
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
    ReadLed,
    ReadLogEnd,
    RemoteStep,
    Seal,
    WriteMarkers,
)

A, B = BrokerId("a"), BrokerId("b")
SECRET = ClusterSecret(b"s" * 32)
CALLER, CALLED = (BrokerIdentity("c", each, f"start of {each}", SECRET) for each in (A, B))
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
    ReadLed(B),
)
BOUNDS = Bounds(Offset(1), Offset(2), Offset(3), Offset(4))
ANSWERS = (
    (Force(AT), None),
    (IsReplicated(AT, EntryIndex(9), LeaderEpoch(2)), True),
    (IsReplicated(AT, EntryIndex(9), LeaderEpoch(2)), False),
    (ReadBounds(AT), BOUNDS),
    (WriteMarkers(AT, 7, ()), Marked(EntryIndex(5), LeaderEpoch(1), True)),
    (WriteMarkers(AT, 7, ()), Marked(EntryIndex(0), LeaderEpoch(0), False)),
    (ReadLed(B), {"id": [0, 2]}),
    (ReadLed(B), {}),
    (ReadLogEnd(B, AT), None),
    (ReadLogEnd(B, AT), LogEnd(Generation("g"), -1, EntryIndex(0))),
    (ReadLogEnd(B, AT), LogEnd(Generation("g"), 3, EntryIndex(10))),
    (Describe(AT), Described(BOUNDS, LeaderEpoch(2), EntryIndex(6), 1_000, 2, {B: EntryIndex(4)})),
    (Describe(AT), Described(BOUNDS, LeaderEpoch(2), EntryIndex(6), 1_000, 2, {}, hw_known=False)),
)


class Table:
    """A target of steps that returns, or raises, a given answer."""

    def __init__(self, *answers: object) -> None:
        self._answers = list(answers)
        self.asked: list[object] = []

    def run_here(self, step: object) -> object:
        self.asked.append(step)
        answer = self._answers.pop(0)
        if isinstance(answer, IsologError):
            raise answer
        return answer


def travelled(*asked_and_answered: tuple[RemoteStep, object]) -> list[object]:
    """The answers to steps, after they came back from another broker."""
    asked = [step for step, _ in asked_and_answered]
    table = Table(*(answer for _, answer in asked_and_answered))
    return answers_of(run_steps(table, CALLED, asking(*asked)), CALLER, "b", "n", asked)


def asking(*steps: RemoteStep, nonce: str = "n") -> bytes:
    """The steps of broker a at broker b."""
    return asked_of(CALLER, "b", "start of b", nonce, pack_steps(steps))


@pytest.mark.parametrize("step", STEPS, ids=str)
def test_a_step_arrives_unchanged(step):
    assert unpack_steps(pack_steps([step])) == [step]


def test_every_step_of_a_partition_or_a_broker_can_travel():
    kinds = {
        each
        for each in vars(steps).values()
        if isinstance(each, type)
        and issubclass(each, PartitionStep | BrokerStep)
        and each not in (PartitionStep, BrokerStep)
    }
    assert kinds == {type(each) for each in STEPS} == set(REMOTE_STEPS)


@pytest.mark.parametrize("kind", ["Seal", "WriteMarkers", "DropBranch", "IsReplicated"])
def test_a_step_that_lacks_a_field_is_refused_by_its_name(kind):
    at = {"topic": "t", "topic_id": "id", "partition": 0}
    with pytest.raises(InvalidRequest, match="missing required field"):
        unpack_steps(msgspec.Raw(msgspec.msgpack.encode([{"type": kind, "at": at}])))


@pytest.mark.parametrize("packed", [b"", b"\x90" * 9, b"\x91\x81\xa4type\xa4Rest", b"\xc1"])
def test_invalid_steps_are_refused(packed):
    with pytest.raises(InvalidRequest, match="RunSteps: steps: "):
        unpack_steps(msgspec.Raw(packed))


@pytest.mark.parametrize(("step", "answer"), ANSWERS, ids=str)
def test_an_answer_arrives_unchanged(step, answer):
    assert travelled((step, answer)) == [answer]


def test_extents_and_errors_come_back_beside_other_answers():
    block = Block(*(np.array(each) for each in ([7, 8], [1, 2], [0, 10], [9, 19])))
    extents = SpansSnapshot((block,), {})
    error = UnknownTopic("there is no topic 't'", topic="t")
    first, refusal, bounds, second = travelled(
        (ReadExtents(AT), extents),
        (Force(AT), error),
        (ReadBounds(AT), BOUNDS),
        (ReadExtents(AT), SpansSnapshot((), {})),
    )
    (found,) = first.blocks
    for one, other in zip(vars_of(found), vars_of(block), strict=True):
        assert one.tolist() == other.tolist()
    assert isinstance(refusal, UnknownTopic)
    assert refusal.details == {"topic": "t"}
    assert bounds == BOUNDS
    assert second.blocks == ()


def vars_of(block: Block) -> list[np.ndarray]:
    return [block.transactions, block.producers, block.firsts, block.lasts]


def test_a_failed_step_delays_no_other():
    table = Table(UnknownTopic("gone"), None)
    run_steps(table, CALLED, asking(Force(AT), Seal(AT, 1)))
    assert table.asked == [Force(AT), Seal(AT, 1)]


@pytest.mark.parametrize(
    "fields",
    [
        {"proof": ""},
        {"proof": CALLER.call_proof("b", "an earlier start of b")},
        {"proof": CALLER.call_proof("c", "start of b")},
        {
            "proof": BrokerIdentity("c", A, "i", ClusterSecret(b"x" * 32)).call_proof(
                "b", "start of b"
            )
        },
        {"caller": "c"},
    ],
)
def test_steps_need_a_proof_for_this_incarnation(fields):
    table = Table()
    sent = {"caller": "a", "proof": CALLER.call_proof("b", "start of b"), "nonce": "n"} | fields
    asked = RunSteps(**sent, steps=pack_steps([Force(AT)]))
    with pytest.raises(Unauthenticated, match="present run of broker b"):
        run_steps(table, CALLED, msgspec.msgpack.encode(asked))
    assert table.asked == []


def test_answers_of_another_process_are_refused():
    asked = Seal(AT, 1)
    for proof in ("", CALLED.answer_proof("another"), CALLER.answer_proof("n")):
        said = msgspec.msgpack.encode({"proof": proof, "answers": [{"value": None}]})
        with pytest.raises(Unauthenticated, match="in the place of broker b"):
            answers_of(said, CALLER, "b", "n", [asked])
    replayed = run_steps(Table(None), CALLED, asking(asked, nonce="another"))
    with pytest.raises(Unauthenticated):
        answers_of(replayed, CALLER, "b", "n", [asked])


@pytest.mark.parametrize("result", [b"", b"{}", b"\xc1"])
def test_an_invalid_answer_names_its_broker(result):
    with pytest.raises(InternalError, match="broker b sent an invalid answer"):
        answers_of(result, CALLER, "b", "n", [Seal(AT, 1)])


def test_each_step_needs_one_answer():
    result = run_steps(Table(None), CALLED, asking(Seal(AT, 1)))
    with pytest.raises(InternalError, match="1 answers to 2 steps"):
        answers_of(result, CALLER, "b", "n", [Seal(AT, 1), Force(AT)])
