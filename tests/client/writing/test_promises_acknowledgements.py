"""No error of a leader becomes an acknowledgement."""

from __future__ import annotations

import ast
import json
from collections import Counter
from concurrent.futures import Future
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from isolog.errors import InvalidRequest, IsologError, UnknownOutcome
from spark_stream import client, errors
from spark_stream.client.values import Written
from spark_stream.client.writing.lanes import Outgoing, Settlement, Unacknowledged, settlement_of
from spark_stream.client.writing.promises import Failures, Outcomes, RecordPromise, SpreadPromise
from spark_stream.wire.stream_messages import Ack, BatchRefused, ack_from_bytes

ROWS = 4
KINDS = sorted(
    (kind for kind in vars(errors).values() if isinstance(kind, type) and kind is not IsologError),
    key=lambda kind: kind.__name__,
)
KINDS = [kind for kind in KINDS if issubclass(kind, IsologError)]
# The possible details of an error, relevant or not.
DETAILS = st.fixed_dictionaries(
    {},
    optional={
        "kept": st.integers(0, ROWS + 1),
        "count": st.integers(0, ROWS + 1),
        "offset": st.none() | st.integers(0, 99),
    },
)
REFUSED = st.integers(0, ROWS - 1)


def over_the_wire(ack: Ack, batch: Outgoing) -> Settlement:
    """Return the client's settlement for an answer."""
    return settlement_of("t", batch, ack_from_bytes(ack.to_bytes()), None)


def settled(ack: Ack, joined: list[int], failures: Failures) -> list[Future[Written]]:
    """Return the futures of single records, in batches of these sizes that were joined."""
    futures: list[Future[Written]] = []
    batches = []
    for rows in joined:
        outcomes = Outcomes(failures)
        futures += [RecordPromise(outcomes, row) for row in range(rows)]
        batches.append(
            Outgoing(
                pa.record_batch({"n": [0] * rows}),
                0,
                1.0,
                lambda each, outcomes=outcomes, rows=rows: outcomes.settle(0, rows, each),
            )
        )
    batches[0].others = batches[1:]
    batches[0].settle_all(over_the_wire(ack, batches[0]))
    return futures


JOINED = st.sampled_from([[4], [1, 3], [2, 2], [1, 1, 1, 1]])


@pytest.mark.rule("acknowledgements of records: no error becomes one", "client/writing/lanes.py")
@given(st.sampled_from(KINDS), DETAILS, JOINED)
def test_an_error_acknowledges_no_record(kind, details, joined):
    """For any value of ``kept``: only the refusal of a record acknowledges earlier ones."""
    ack = BatchRefused(number=0, partition=0, error=kind("no", **details), count=0)
    failures = Failures()
    futures = settled(ack, joined, failures)
    assert all(isinstance(each.exception(0), IsologError) for each in futures)
    assert failures.first is not None  # a transaction with such a write cannot commit


@given(REFUSED, DETAILS, JOINED)
def test_a_refused_record_acknowledges_those_before_it_at_the_leaders_offsets(bad, details, joined):
    error = errors.InvalidRecord("bad", **details | {"record": bad})
    answer = {"offset": 50, "count": bad} if bad else {"count": 0}
    ack = BatchRefused(number=0, partition=0, error=error, **answer)
    futures = settled(ack, joined, Failures())
    assert [each.result(0).offset for each in futures[:bad]] == list(range(50, 50 + bad))
    assert all(isinstance(each.exception(0), IsologError) for each in futures[bad:])


@given(st.sampled_from(KINDS), DETAILS, st.integers(1, ROWS + 1))
def test_an_error_that_refuses_no_record_cannot_acknowledge_any(kind, details, count):
    with pytest.raises(ValueError, match="does not acknowledge"):
        Unacknowledged(kind("no", **details), Written("t", 0, 5, count))


@pytest.mark.parametrize("answer", [{}, {"offset": None}, {"offset": -1}])
def test_an_answer_without_an_offset_is_no_acknowledgement(answer):
    whole = {"number": 0, "partition": 0, "count": 1, "partitions": 1, "leader_epoch": 0}
    sent = {"kind": "acknowledged", **whole, "duplicate": False, **answer}
    with pytest.raises(InvalidRequest, match=r"Ack: offset: "):
        ack_from_bytes(json.dumps(sent).encode())


@pytest.mark.parametrize(("offset", "count"), [(-1, 1), (-1, 0), (0, -1)])
def test_an_acknowledgement_below_offset_0_cannot_be_made(offset, count):
    with pytest.raises(ValueError, match="cannot be written"):
        Written("t", 0, offset, count)


@given(st.lists(st.sampled_from(["written", "refused", "unknown", "gone"]), min_size=1, max_size=5))
def test_a_batch_over_partitions_is_acknowledged_with_all_its_parts(kinds):
    failures = Failures()
    whole = SpreadPromise(len(kinds), failures)
    parts: dict[str, Settlement] = {
        "written": Written("t", 0, 50, 4),
        "refused": Unacknowledged(
            errors.InvalidRecord("bad", kept=1, offset=7, record=1), Written("t", 0, 7, 1)
        ),
        "unknown": Unacknowledged(UnknownOutcome("who knows", count=4, offset=9)),
        "gone": Unacknowledged(errors.BrokerUnavailable("gone")),
    }
    for number, kind in enumerate(kinds):
        assert not whole.promise.done()
        assert failures.unsettled == {whole}
        whole.settle(number * 4, parts[kind])
    assert not failures.unsettled
    error = whole.promise.exception(0)
    if set(kinds) == {"written"}:
        assert whole.promise.result(0).count == 4 * len(kinds)
        return
    assert isinstance(error, IsologError)
    assert error.kept == 4 * kinds.count("written") + kinds.count("refused")
    assert isinstance(error, UnknownOutcome) == ("unknown" in kinds)


def test_only_an_answer_of_the_leader_and_an_empty_batch_make_an_acknowledgement():
    """Acknowledgements are created in two places. This test detects a third one."""
    root = Path(client.__file__).parent
    found: Counter[str] = Counter()
    for path in root.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "Written":
                found[str(path.relative_to(root))] += 1
    assert found == {"writing/lanes.py": 1, "writing/producer.py": 1}
