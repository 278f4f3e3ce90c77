"""Control messages survive a round trip, and invalid ones are refused with the field's name."""

from __future__ import annotations

import json
import subprocess
import sys
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import NODEFAULT, structs

from isolog.errors import InvalidRecord, InvalidRequest
from spark_stream.consistency.partition.producers import Stamp
from spark_stream.structs import INT64_MAX
from spark_stream.wire.access_messages import UserList
from spark_stream.wire.calls import CALLS
from spark_stream.wire.limits import CONTROL_BYTES_MAX
from spark_stream.wire.stream_messages import (
    Acknowledged,
    AppendTo,
    BatchRefused,
    ChunkFacts,
    EndFacts,
    Envelope,
    FailureFacts,
    Fetch,
    FetchRange,
    LocateEntries,
    ack_from_bytes,
    fetch_answer,
)
from spark_stream.wire.topic_messages import FindLeaders, ListOffsets, PartitionDescription

FETCH = {"topic": "t", "partition": 0}


def test_partition_without_a_leader_survives_a_round_trip():
    facts = PartitionDescription(
        partition=0,
        leader=None,
        leader_epoch=3,
        replicas=("a",),
        isr=("a",),
        log_start_offset=0,
        log_end_offset=0,
        high_watermark=0,
        last_stable_offset=0,
        size=0,
    )
    assert PartitionDescription.from_bytes(facts.to_bytes()) == facts


@pytest.mark.parametrize(
    ("kind", "sent", "field"),
    [
        (FetchRange, {"topic": "t"}, "partition"),
        (FetchRange, FETCH | {"partition": -1}, "partition"),
        (FetchRange, FETCH | {"partition": 1 << 31}, "partition"),
        (FetchRange, FETCH | {"partition": "0"}, "partition"),
        (FetchRange, FETCH | {"partition": True}, "partition"),
        (FetchRange, FETCH | {"start": -3}, "start"),
        (FetchRange, FETCH | {"end": INT64_MAX + 1}, "end"),
        (FetchRange, FETCH | {"end": 1.5}, "end"),
        (FetchRange, FETCH | {"topic": ""}, "topic"),
        (FetchRange, FETCH | {"topic": "t" * 256}, "topic"),
        (FetchRange, FETCH | {"isolation": "dirty"}, "isolation"),
        (FetchRange, FETCH | {"colums": ["n"]}, "colums"),
        (FetchRange, FETCH | {"columns": ["n", 1]}, "columns[1]"),
        (FetchRange, FETCH | {"start_lineage": [[1, 2], [3]]}, "start_lineage[1]"),
        (Fetch, {"ranges": []}, "ranges"),
        (Fetch, {"ranges": [FETCH, {"topic": "t"}]}, "ranges[1].partition"),
        (Envelope, {"partition": 0, "stamp": {"producer_id": 1, "epoch": 0}}, "stamp.sequence"),
        (Envelope, {"partition": 0, "stamp": {"producer_id": -1}}, "stamp.producer_id"),
        (ListOffsets, {"topics": [{"topic": "t", "ranges": {"-1": [0, 1]}}]}, "topics[0].ranges"),
        (ListOffsets, {"topics": [{"topic": "t", "at": 0}]}, "topics[0].at"),
        (
            LocateEntries,
            {**FETCH, "topic_id": "i", "runs": [{"indexes": [1, 2, 3], "epoch": 0}]},
            "runs[0]",
        ),
    ],
)
def test_a_field_that_is_wrong_is_named(kind, sent, field):
    with pytest.raises(InvalidRequest) as caught:
        kind.from_bytes(json.dumps(sent).encode())
    assert caught.value.details["field"].startswith(field)
    assert caught.value.message.startswith(f"{kind.__name__}: {field}")


@pytest.mark.parametrize(
    "data",
    [b"\xff", b"{", b"[]", b"1", b'{"topic": "\xff"}', b"{} x", b'{"topic":' + b"[" * 99_999],
)
def test_invalid_message_is_refused(data):
    with pytest.raises(InvalidRequest, match=r"^\[INVALID_REQUEST\] FetchRange: "):
        FetchRange.from_bytes(data)


def test_a_message_that_is_too_long_is_not_read():
    with pytest.raises(InvalidRequest, match="has at most"):
        FetchRange.from_bytes(b" " * (CONTROL_BYTES_MAX + 1))


@given(
    st.sampled_from(sorted(CALLS)),
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
        lambda inner: (
            st.lists(inner, max_size=3)
            | st.dictionaries(st.sampled_from(["topic", "partition", "topics", "x", "1"]), inner)
        ),
    ),
)
def test_arbitrary_bodies_raise_no_other_error(name, body):
    with suppress(InvalidRequest):
        CALLS[name].from_bytes(json.dumps(body).encode())


def test_values_of_a_user_are_checked_as_bytes_are():
    with pytest.raises(InvalidRequest, match="FetchRange: partition: Expected `int` >= 0"):
        FetchRange.of(topic="t", partition=-1)
    with pytest.raises(InvalidRequest, match="FetchRange: partition: "):
        FetchRange.of(topic="t", partition="0")
    assert FetchRange.of(topic="t", partition=0) == FetchRange(topic="t", partition=0)


def test_one_of_several_ranges_neither_waits_nor_follows():
    one, waiting = FetchRange(topic="t", partition=1), FetchRange(topic="t", partition=0, wait_ms=1)
    for ranges in ([one, one], [waiting]):
        assert Fetch.from_bytes(Fetch(ranges=ranges).to_bytes()).ranges == ranges
    sent = {"ranges": [json.loads(each.to_bytes()) for each in (one, waiting)]}
    with pytest.raises(InvalidRequest, match="neither waits nor follows"):
        Fetch.from_bytes(json.dumps(sent).encode())


def test_description_of_a_later_release_may_have_more_fields():
    """Requests may not: a broker that ignored a field would carry out another request."""
    described = UserList(users=["alice"])
    sent = json.loads(described.to_bytes()) | {"new": 1}
    assert UserList.from_bytes(json.dumps(sent).encode()) == described
    with pytest.raises(InvalidRequest, match="new"):
        AppendTo.from_bytes(b'{"topic": "t", "new": 1}')


def test_a_message_is_frozen():
    with pytest.raises(AttributeError):
        FetchRange(topic="t", partition=0).partition = 1


longs = st.integers(0, INT64_MAX)


@given(
    st.builds(
        Envelope,
        number=longs,
        partition=st.integers(0, (1 << 31) - 1),
        stamp=st.none() | st.builds(Stamp, longs, st.integers(0, 9), st.integers(0, 99)),
        leader_epoch=st.none() | longs,
    )
)
def test_envelope_survives_a_round_trip(envelope):
    assert Envelope.from_bytes(envelope.to_bytes()) == envelope


def test_answer_to_a_batch_has_its_kind():
    done = Acknowledged(
        number=7, partition=2, offset=42, count=1, partitions=4, leader_epoch=2, duplicate=False
    )
    assert ack_from_bytes(done.to_bytes()) == done
    assert json.loads(done.to_bytes())["kind"] == "acknowledged"
    error = InvalidRecord("bad", record=1)
    found = ack_from_bytes(BatchRefused(number=7, partition=2, error=error, count=0).to_bytes())
    assert isinstance(found, BatchRefused)
    assert (type(found.error), found.error.details) == (InvalidRecord, {"record": 1})


@pytest.mark.parametrize(
    "sent", [{}, {"kind": "maybe"}, {"kind": "refused", "number": 0, "partition": 0, "count": 0}]
)
def test_invalid_answer_acknowledges_no_batch(sent):
    with pytest.raises(InvalidRequest, match=r"Ack: (kind|error): "):
        ack_from_bytes(json.dumps(sent).encode())


def test_header_of_a_batch_has_its_kind():
    told = [
        ChunkFacts(base=1, next=3, lineage=((0, 3),), spans=[(1, 1)]),
        EndFacts(next=3, partitions=1, leader_epoch=0, lineage=((0, 3),)),
    ]
    assert [fetch_answer(each.to_bytes()) for each in told] == told
    failed = fetch_answer(FailureFacts(range=1, error=InvalidRequest("no")).to_bytes())
    assert isinstance(failed, FailureFacts)
    assert (failed.range, failed.error.message) == (1, "no")


MANY_THREADS = """
import json, sys, threading
from spark_stream.wire.messages import Message

sys.setswitchinterval(1e-6)
for number in range(100):
    for part in range(4):
        globals()[f"Part{part}"] = type(Message)(
            f"Part{part}", (Message,), {"__annotations__": {"x": "int"}, "__module__": __name__}
        )
    fields = {f"part{part}": f"Part{part}" for part in range(4)}
    whole = type(Message)(
        "Whole", (Message,), {"__annotations__": fields, "__module__": __name__}
    )
    begin = threading.Barrier(8)

    def decode(whole=whole, begin=begin, how=number % 2):
        begin.wait()
        parts = {f"part{part}": {"x": 1} for part in range(4)}
        found = whole.of(**parts) if how else whole.from_bytes(json.dumps(parts).encode())
        assert found.part3.x == 1

    threads = [threading.Thread(target=decode) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
"""


def test_many_threads_may_decode_the_first_message_of_a_kind() -> None:
    """It runs in a separate process, because a failure ends the process."""
    done = subprocess.run([sys.executable, "-c", MANY_THREADS], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.rule("the fields that a request to an earlier release lacks", "wire/messages.py")
def test_a_request_loses_the_hints_that_an_earlier_release_does_not_have():
    def refused(field: str, what: str = "Object contains unknown field") -> InvalidRequest:
        return InvalidRequest(f"FindLeaders: {field}: {what} `{field}`", field=field)

    asked = FindLeaders(topic="t", topic_id="i", rack="a", machine="m")
    without = asked.without_hint(refused("rack"))
    assert without == FindLeaders(topic="t", topic_id="i", machine="m")
    assert without.without_hint(refused("machine")) == FindLeaders(topic="t", topic_id="i")
    assert without.without_hint(refused("rack")) is None  # it was not sent
    assert asked.without_hint(refused("topic_id")) is None  # no hint
    assert asked.without_hint(refused("rack", "Expected `str`")) is None
    assert asked.without_hint(InvalidRequest("there is no action")) is None


@pytest.mark.parametrize("kind", CALLS.values())
def test_a_hint_is_a_field_with_a_default(kind):
    optional = {each.name for each in structs.fields(kind) if each.default is not NODEFAULT}
    assert optional >= kind.HINTS
