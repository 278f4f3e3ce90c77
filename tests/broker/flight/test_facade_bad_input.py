"""Random and almost valid input for every Flight call. Errors are typed and the broker survives."""

from __future__ import annotations

import contextlib
import json
import random
from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.flight as fl
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import isolog
from tests.examples import examples
from tests.flight_calls import CALL, act_by_flight, flight_client, typed
from tests.support import NUMBERS, BrokerProcess, numbers

EXAMPLES = settings(
    max_examples=examples(60),
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)

odd_values = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**70), 2**70),
    st.floats(),
    st.text(max_size=300),
    st.lists(st.integers(), max_size=3),
    st.dictionaries(st.text(max_size=3), st.integers(), max_size=2),
    st.sampled_from(["../x", "a/b", "\x00", "kept", "read_committed", "NaN", "x" * 100_000]),
)
fields = st.sampled_from(
    [
        *("topic", "partition", "start", "end", "isolation", "columns", "max_records"),
        *("max_bytes", "wait_ms", "follow", "topic_id", "number", "timeout_ms", "partitions"),
        *("replication_factor", "schema_ipc", "config", "at", "timestamp", "unheard-of"),
    ]
)
nearly_right = st.dictionaries(fields, odd_values, max_size=5).map(
    lambda value: json.dumps({"topic": "kept", "partition": 0} | value).encode()
)
bodies = st.one_of(st.binary(max_size=300), nearly_right)


@pytest.fixture(scope="module")
def steady(shared: BrokerProcess) -> BrokerProcess:
    """The shared broker, with a topic whose records must survive all other tests."""
    with shared.connect() as log:
        if "kept" not in log.topics():
            log.create_topic("kept", schema=NUMBERS)
            with log.producer() as producer:
                producer.append("kept", numbers(0, 100), partition=0).result()
    return shared


def still_well(broker: BrokerProcess, at_least: int = 100) -> None:
    assert broker.alive
    with broker.connect(timeout=10) as log:
        assert log.read("kept")["n"].to_pylist()[:at_least] == list(range(at_least))


def expect_typed(call: Any) -> None:
    """Check that the call succeeds, or fails with a typed error."""
    code = "none"
    try:
        call()
    except fl.FlightError as error:
        code = typed(error).code
    assert code != "INTERNAL"


@EXAMPLES
@given(ticket=bodies.filter(lambda body: b'"follow": true' not in body and b"wait_ms" not in body))
def test_random_ticket_raises_only_typed_errors(steady: BrokerProcess, ticket: bytes) -> None:
    with flight_client(steady.address) as client:
        expect_typed(lambda: client.do_get(fl.Ticket(ticket), CALL).read_all())
    assert steady.alive


@pytest.mark.rule("the validity of control messages", "wire/messages.py")
@EXAMPLES
@given(
    name=st.one_of(
        st.text(max_size=30),
        st.sampled_from(
            ["create-topic", "describe-topic", "list-topics", "list-offsets", "status"]
        ),
    ),
    body=bodies,
)
def test_random_action_raises_only_typed_errors(
    steady: BrokerProcess, name: str, body: bytes
) -> None:
    with flight_client(steady.address) as client:
        expect_typed(lambda: list(client.do_action(fl.Action(name, body), CALL)))
    assert steady.alive


@EXAMPLES
@given(st.one_of(bodies, st.lists(st.text(max_size=20).map(str.encode), max_size=3)))
def test_random_descriptor_raises_only_typed_errors(
    steady: BrokerProcess, what: bytes | list[bytes]
) -> None:
    descriptor = (
        fl.FlightDescriptor.for_command(what)
        if isinstance(what, bytes)
        else fl.FlightDescriptor.for_path(*what)
    )
    with flight_client(steady.address) as client:
        expect_typed(lambda: client.get_flight_info(descriptor, CALL))
        # pyarrow's client drops the extra_info of this call's errors, but the text has the code.
        with contextlib.suppress(pa.ArrowException):
            client.get_schema(descriptor, CALL)
    assert steady.alive


def put(client: fl.FlightClient, batch: pa.RecordBatch, *metadata: bytes, path: tuple = ()) -> list:
    """Send a batch with each of these envelopes. Return the answers."""
    descriptor = (
        fl.FlightDescriptor.for_path(*path)
        if path
        else fl.FlightDescriptor.for_command(b'{"topic": "kept"}')
    )
    writer, answers = client.do_put(descriptor, batch.schema, CALL)
    found = []
    try:
        for envelope in metadata:
            writer.write_with_metadata(batch, envelope)
            answer = answers.read()
            if answer is None:
                break
            found.append(json.loads(answer.to_pybytes()))
    finally:
        writer.close()
    return found


@EXAMPLES
@given(envelope=bodies)
def test_random_envelope_raises_only_typed_errors(steady: BrokerProcess, envelope: bytes) -> None:
    with flight_client(steady.address) as client:
        expect_typed(lambda: put(client, numbers(1, 1), envelope))
    assert steady.alive


@pytest.mark.parametrize(
    "schema",
    [
        pa.schema([]),
        pa.schema([("m", pa.int64())]),
        pa.schema([("n", pa.string())]),
        pa.schema([("n", pa.dictionary(pa.int8(), pa.int64()))]),
        pa.schema([("n", pa.int64()), ("n", pa.int64())]),
    ],
    ids=str,
)
def test_stream_with_another_schema_is_refused(steady: BrokerProcess, schema: pa.Schema) -> None:
    batch = pa.RecordBatch.from_arrays([pa.nulls(1, f.type) for f in schema], schema=schema)
    with flight_client(steady.address) as client, pytest.raises(fl.FlightError) as caught:
        put(client, batch, b'{"partition": 0}')
    assert typed(caught.value).code in ("SCHEMA_MISMATCH", "INVALID_REQUEST")
    still_well(steady)


def corrupted(chance: random.Random) -> pa.RecordBatch:
    """Return a batch of strings and lists with random offsets."""
    rows = chance.randrange(1, 5)

    def offsets() -> pa.Buffer:
        values = [chance.choice([0, 1, 3, -1, 2**31 - 1, -(2**31)]) for _ in range(rows + 1)]
        return pa.py_buffer(np.array(values, np.int32))

    data = pa.py_buffer(bytes(chance.randrange(256) for _ in range(8)))
    text = pa.Array.from_buffers(pa.string(), rows, [None, offsets(), data])
    child = pa.array([1, 2, 3], pa.int64())
    lists = pa.Array.from_buffers(pa.list_(pa.int64()), rows, [None, offsets()], children=[child])
    return pa.RecordBatch.from_arrays([text, lists], names=["text", "lists"])


def impossible(chance: random.Random, count: int) -> Iterator[pa.RecordBatch]:
    """Yield corrupted batches that only a full validation detects, so that pyarrow builds them."""
    while count:
        with contextlib.suppress(pa.ArrowInvalid):
            yield corrupted(chance)
            count -= 1


def test_batches_with_invalid_offsets_are_refused(
    broker: BrokerProcess,
) -> None:
    chance = random.Random(20261121)
    schema = pa.schema([("text", pa.string()), ("lists", pa.list_(pa.int64()))])
    good = pa.record_batch([["ü"], [[1]]], schema=schema)
    with broker.connect() as log, flight_client(broker.address) as client:
        log.create_topic("kept", schema=schema)
        refused = 0
        for batch in impossible(chance, 150):
            (answer,) = put(client, batch, b'{"partition": 0}')
            refused += "error" in answer
            if "error" in answer:
                assert answer["error"]["code"] == "INVALID_RECORD", answer
        assert refused > 100
        (answer,) = put(client, good, b'{"partition": 0}')
        table = log.read("kept")
        assert table.num_rows == answer["offset"] + 1
        assert table["text"].to_pylist()[-1] == "ü"
        table.validate(full=True)


def test_message_without_batch_and_batch_without_partition_are_refused(
    steady: BrokerProcess,
) -> None:
    with flight_client(steady.address) as client:
        assert put(client, numbers(0, 1), path=("kept",)) == []
        with pytest.raises(fl.FlightError) as caught:
            put(client, numbers(0, 1), b"", path=("kept",))
        assert typed(caught.value).code == "INVALID_REQUEST"
    still_well(steady)


@pytest.mark.parametrize("name", ["../x", "a/b", "", ".", "..", "x" * 201, "\x00", "ü", "-" * 300])
def test_topic_name_that_is_no_valid_folder_is_refused(steady: BrokerProcess, name: str) -> None:
    with flight_client(steady.address) as client, pytest.raises(fl.FlightError) as caught:
        act_by_flight(client, "create-topic", json.dumps({"topic": name}).encode())
    assert typed(caught.value).code in ("INVALID_TOPIC", "INVALID_REQUEST")
    with steady.connect() as log:
        assert "kept" in log.topics()
        assert name not in log.topics()


@pytest.mark.parametrize(
    ("asked", "code"),
    [
        ({"partitions": 0}, "INVALID_TOPIC"),
        ({"partitions": 10**9}, "INVALID_TOPIC"),
        ({"partitions": 2.5}, "INVALID_REQUEST"),
        ({"replication_factor": 3}, "INVALID_ASSIGNMENT"),
        ({"config": {"retention.ms": "soon"}}, "INVALID_CONFIG"),
        ({"config": {"retention.m": "1"}}, "INVALID_CONFIG"),
        ({"schema_ipc": "AAAA"}, "INVALID_REQUEST"),
        ({"schema_ipc": "%%"}, "INVALID_REQUEST"),
    ],
)
def test_refused_topic_leaves_no_files(
    steady: BrokerProcess, asked: dict[str, Any], code: str
) -> None:
    with flight_client(steady.address) as client:
        body = json.dumps({"topic": "half-done"} | asked).encode()
        with pytest.raises(fl.FlightError) as caught:
            act_by_flight(client, "create-topic", body)
        assert typed(caught.value).code == code
        assert "half-done" not in act_by_flight(client, "list-topics")["topics"]
    assert not (steady.directory / "topics" / "half-done").exists()


def test_records_are_unchanged_after_bad_input(steady: BrokerProcess, log: isolog.Log) -> None:
    still_well(steady)
    assert log.status().pid == steady.pid
