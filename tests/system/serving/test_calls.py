"""Single calls by plain Flight that are wrong, or unusual, each in its own way."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.flight as fl
import pytest

import isolog
from isolog.errors import UnknownTopic
from spark_stream.schema.schemas import DEFAULT_SCHEMA
from spark_stream.wire.calls import CALLS
from spark_stream.wire.limits import CONTROL_BYTES_MAX
from tests.support import CALL, NUMBERS, act, answers, fetched, listed, numbers, ticket, typed


@pytest.fixture
def hundred(log: isolog.Log, topic: str) -> str:
    """The numbers 0 to 99 in ten batches of partition 0; partition 1 is empty."""
    log.create_topic(topic, partitions=2, schema=NUMBERS)
    with log.producer() as producer:
        for start in range(0, 100, 10):
            producer.append(topic, numbers(start, 10), partition=0)
    return topic


def code_of(call: Any) -> str:
    with pytest.raises(fl.FlightError) as caught:
        call()
    return typed(caught.value).code


def put(
    client: fl.FlightClient,
    descriptor: fl.FlightDescriptor,
    batch: pa.RecordBatch,
    envelope: dict[str, Any] | None = None,
    options: fl.FlightCallOptions = CALL,
) -> dict[str, Any]:
    """Sends one batch; its acknowledgement."""
    writer, replies = client.do_put(descriptor, batch.schema, options)
    try:
        if envelope is None:
            writer.write_batch(batch)
        else:
            writer.write_with_metadata(batch, json.dumps(envelope).encode())
        reply = replies.read()
    finally:
        writer.close()
    return dict(json.loads(reply.to_pybytes()))


def command(**fields: Any) -> fl.FlightDescriptor:
    return fl.FlightDescriptor.for_command(json.dumps(fields).encode())


def test_an_exchange_is_refused_as_what_there_is_not(flight, hundred):
    def exchange() -> None:
        writer, reader = flight.do_exchange(fl.FlightDescriptor.for_path(hundred), CALL)
        writer.begin(NUMBERS)
        writer.done_writing()
        reader.read_chunk()

    assert code_of(exchange) == "UNSUPPORTED"


PATHS = [
    ([], "INVALID_REQUEST"),
    ([""], "INVALID_REQUEST"),
    (["nowhere"], "UNKNOWN_TOPIC"),
    (["n" * 10_000], "UNKNOWN_TOPIC"),
    (["T", "x"], "INVALID_REQUEST"),
    (["T", "-1"], "INVALID_REQUEST"),
    (["T", "1.0"], "INVALID_REQUEST"),
    (["T", "\u0663"], "INVALID_REQUEST"),  # a digit, but not of ours
    (["T", "2"], "UNKNOWN_PARTITION"),
    (["T", str(2**31)], "UNKNOWN_PARTITION"),
    (["T", str(2**70)], "UNKNOWN_PARTITION"),
    (["T", "9" * 5000], "UNKNOWN_PARTITION"),
    (["T", "0", "0"], "INVALID_REQUEST"),
    (["..", "0"], "UNKNOWN_TOPIC"),
]


@pytest.mark.parametrize(("path", "code"), PATHS, ids=[str(path)[:30] for path, _ in PATHS])
def test_a_path_that_names_nothing(flight, hundred, path, code):
    descriptor = fl.FlightDescriptor.for_path(*[hundred if part == "T" else part for part in path])
    assert code_of(lambda: flight.get_flight_info(descriptor, CALL)) == code
    if path != ["T", "2"]:
        assert code_of(lambda: put(flight, descriptor, numbers(0, 1))) == code
    else:  # the stream is good, its batch is for nobody
        assert put(flight, descriptor, numbers(0, 1))["error"]["code"] == code


@pytest.mark.parametrize("field", ["at", "timestamp", "partitions"])
@pytest.mark.parametrize("value", [10**30, -(10**30), 2**63, -(2**63) - 1, 1.5, True, "0", [2**40]])
def test_offsets_of_a_place_that_is_none(flight, hundred, field, value):
    code = code_of(lambda: listed(flight, hundred, **{field: value}))
    assert code == "INVALID_REQUEST"


@pytest.mark.parametrize("timestamp", [2**63 - 1, -(2**63)])
def test_the_first_and_the_last_moment_there_are(flight, hundred, timestamp):
    found = listed(flight, hundred, timestamp=timestamp, partitions=[0])
    assert found.offsets == {0: 100 if timestamp > 0 else 0}


def test_offsets_of_some_partitions(flight, hundred):
    assert listed(flight, hundred, partitions=[]).offsets == {}
    assert listed(flight, hundred, partitions=[1, 1]).offsets == {1: 0}
    code = code_of(lambda: listed(flight, hundred, partitions=[0, 2]))
    assert code == "UNKNOWN_PARTITION"


@pytest.mark.parametrize(
    "fields",
    [
        {"start": -3},
        {"start": 2**63},
        {"end": -1},
        {"max_records": 0},
        {"max_bytes": -1},
        {"wait_ms": 60_001},
        {"isolation": "serializable"},
        {"isolation": 1},
        {"columns": "n"},
        {"columns": [""]},
        {"columns": ["n", "n"]},
        {"columns": [None]},
        {"follow": "yes"},
        {"partition": 1.0},
        {"partition": True},
        {"topic": None},
        {"more": 1},
    ],
    ids=str,
)
def test_a_ticket_that_is_nearly_right(flight, hundred, fields):
    asked = {"topic": hundred, "partition": 0} | fields
    ticket = fl.Ticket(json.dumps({"ranges": [asked]}).encode())
    assert code_of(lambda: list(answers(flight, ticket))) == "INVALID_REQUEST"
    descriptor = fl.FlightDescriptor.for_command(json.dumps(asked).encode())
    if "start" not in fields and "wait_ms" not in fields:
        assert code_of(lambda: flight.get_flight_info(descriptor, CALL)) == "INVALID_REQUEST"


@pytest.mark.parametrize(
    "body", [b"", b"null", b"[]", b"{", b'{"topic":"t"} x', b"\xff", b"[" * 99_999]
)
def test_a_body_that_is_no_object(flight, body):
    assert code_of(lambda: list(answers(flight, fl.Ticket(body)))) == "INVALID_REQUEST"
    for name in ("describe-topic", "create-topic", "delete-topic", "list-offsets"):
        action = fl.Action(name, body)
        assert code_of(lambda a=action: list(flight.do_action(a, CALL))) == "INVALID_REQUEST"


def test_a_body_above_the_limit(flight, hundred):
    padded = (
        json.dumps({"ranges": [{"topic": hundred, "partition": 0}]}).encode()
        + b" " * CONTROL_BYTES_MAX
    )
    assert code_of(lambda: list(answers(flight, fl.Ticket(padded)))) == "INVALID_REQUEST"


def test_of_fields_that_are_there_twice_the_last_counts(flight, hundred):
    one = json.dumps({"topic": hundred, "partition": 0}).encode()[:-1] + b', "partition": 1}'
    ((batch, facts),) = list(answers(flight, fl.Ticket(b'{"ranges": [' + one + b"]}")))
    assert (batch.num_rows, facts["next"]) == (0, 0)


def test_the_levels_of_a_producer(flight, hundred):
    for isolation in ("read_uncommitted", "read_committed"):
        reply = put(
            flight, command(topic=hundred, isolation=isolation), numbers(0, 1), {"partition": 1}
        )
        assert reply["count"] == 1
    for isolation in ("read_replicated", "read_atomic"):
        descriptor = command(topic=hundred, isolation=isolation)
        assert code_of(lambda d=descriptor: put(flight, d, numbers(0, 1))) == "INVALID_REQUEST"


def test_an_append_to_a_topic_of_another_id(flight, hundred):
    topic_id = act(flight, "describe-topic", topic=hundred)["id"]
    good = command(topic=hundred, topic_id=topic_id)
    assert put(flight, good, numbers(0, 1), {"partition": 1})["offset"] == 0
    stale = command(topic=hundred, topic_id="another")
    assert code_of(lambda: put(flight, stale, numbers(0, 1))) == "UNKNOWN_TOPIC"


def test_one_stream_serves_all_partitions_and_a_bad_batch_ends_nothing(flight, hundred):
    writer, replies = flight.do_put(command(topic=hundred), NUMBERS, CALL)
    envelopes = [(7, 0), (8, 1), (9, 5), (10, 1), (11, 0)]
    for number, partition in envelopes:
        envelope = json.dumps({"number": number, "partition": partition}).encode()
        writer.write_with_metadata(numbers(0, 2), envelope)
    answers = [json.loads(replies.read().to_pybytes()) for _ in envelopes]
    writer.close()
    for partition in range(2):  # those of a partition come in their order
        numbered = [each["number"] for each in answers if each["partition"] == partition]
        assert numbered == [number for number, where in envelopes if where == partition]
    found = sorted(answers, key=lambda each: each["number"])
    assert [(each["number"], each["partition"]) for each in found] == envelopes
    assert [each.get("offset") for each in found] == [100, 0, None, 2, 102]
    assert found[2]["error"]["code"] == "UNKNOWN_PARTITION"


@pytest.mark.parametrize("compression", ["lz4", "zstd"])
def test_a_client_may_compress_what_it_sends(flight, hundred, compression):
    options = fl.FlightCallOptions(
        timeout=20, write_options=pa.ipc.IpcWriteOptions(compression=compression)
    )
    path = fl.FlightDescriptor.for_path(hundred, "1")
    assert put(flight, path, numbers(0, 10_000), options=options)["count"] == 10_000
    batches, _ = fetched(flight, hundred, 1)
    assert [n for batch, _ in batches for n in batch["n"].to_pylist()] == list(range(10_000))


def test_an_empty_batch_is_acknowledged_and_leaves_no_trace(flight, hundred):
    reply = put(flight, fl.FlightDescriptor.for_path(hundred, "0"), numbers(0, 0))
    assert (reply["offset"], reply["count"]) == (100, 0)
    _, end = fetched(flight, hundred, start=100)
    assert end["next"] == 100


def test_a_schema_with_metadata_of_its_own_fits(flight, hundred):
    batch = numbers(0, 3).replace_schema_metadata({"pandas": "{}"})
    assert put(flight, fl.FlightDescriptor.for_path(hundred, "1"), batch)["count"] == 3


def test_following_with_an_end_or_a_number_of_records_ends_there(flight, hundred):
    for limit in ({"end": 55}, {"max_records": 55}):
        batches, end = fetched(flight, hundred, start=0, follow=True, **limit)
        assert sum(batch.num_rows for batch, _ in batches) == 55
        assert end["next"] == 55


def test_following_to_an_end_that_is_still_to_come(flight, log, hundred):
    reader = flight.do_get(ticket(hundred, start=95, end=105, follow=True), CALL)
    with log.producer() as producer:
        producer.append(hundred, numbers(100, 50), partition=0).result(20)
    rows = [n for chunk in reader for n in chunk.data["n"].to_pylist()]
    assert rows == list(range(95, 105))


def test_an_end_below_the_start_is_an_empty_range(flight, hundred):
    for end_at in (0, 10, 50):
        batches, end = fetched(flight, hundred, start=50, end=end_at, wait_ms=10_000)
        assert (batches, end["next"]) == ([], 50)


def test_a_start_by_name(flight, hundred):
    _, end = fetched(flight, hundred, start=-1)
    assert end["next"] == 100
    batches, _ = fetched(flight, hundred, start=-2, max_records=1)
    assert batches[0][1]["base"] == 0
    batches, _ = fetched(flight, hundred, max_records=1)
    assert batches[0][1]["base"] == 0


def test_limits_hold_to_the_record_wherever_a_read_starts(flight, hundred):
    for start in (0, 3, 10, 37, 99):
        for limit in (1, 2, 9, 10, 11, 35, 1000):
            batches, end = fetched(flight, hundred, start=start, max_records=limit)
            expected = list(range(start, min(100, start + limit)))
            assert [n for batch, _ in batches for n in batch["n"].to_pylist()] == expected
            assert end["next"] == start + len(expected)
            assert [facts["base"] for _, facts in batches][:1] == [start]


def test_more_bytes_never_give_fewer_records(flight, hundred):
    counts = []
    for limit in (1, 100, 300, 1000, 3000, 10_000, 10**9):
        batches, end = fetched(flight, hundred, max_bytes=limit)
        counts.append(end["next"])
        assert sum(batch.num_rows for batch, _ in batches) == end["next"]
    assert counts == sorted(counts)
    assert (counts[0], counts[-1]) == (1, 100)


def test_the_flight_info_of_one_fetch_is_that_fetch(flight, hundred):
    asked = command(topic=hundred, partition=0, start=90, columns=["_offset"])
    info = flight.get_flight_info(asked, CALL)
    assert info.schema.names == ["_offset"]
    (endpoint,) = info.endpoints
    rows = flight.do_get(endpoint.ticket, CALL).read_all()["_offset"].to_pylist()
    assert rows == list(range(90, 100))
    where = fl.FlightDescriptor.for_path(hundred, "0")
    assert flight.get_flight_info(where, CALL).total_records == 100


def test_every_endpoint_says_where_it_is(shared, flight, hundred):
    info = flight.get_flight_info(fl.FlightDescriptor.for_path(hundred), CALL)
    assert len(info.endpoints) == 2
    for endpoint in info.endpoints:
        (location,) = endpoint.locations
        with fl.FlightClient(location) as client:
            client.do_get(endpoint.ticket, CALL).read_all()
    assert location.uri.decode() == f"grpc://{act(flight, 'status')['flight']}"


def test_schemas(flight, log, hundred, topic):
    log.create_topic(f"{topic}-default")
    for name, schema in ((hundred, NUMBERS), (f"{topic}-default", DEFAULT_SCHEMA)):
        found = flight.get_schema(fl.FlightDescriptor.for_path(name), CALL).schema
        assert found.equals(schema)


def test_every_action_that_is_listed_can_be_called(flight, hundred):
    """By those that need nothing said, an empty message is answered; by the others refused."""
    refuses = {"restore-metadata"}  # nothing is missing
    for action in flight.list_actions(CALL):
        assert "→" in action.description
        call = fl.Action(action.type, b"{}")
        fields = msgspec.structs.fields(CALLS[action.type])
        if action.type in refuses or any(each.required for each in fields):
            assert code_of(lambda c=call: list(flight.do_action(c, CALL))) == "INVALID_REQUEST"
        else:
            list(flight.do_action(call, CALL))
    assert (
        code_of(lambda: list(flight.do_action(fl.Action("drop", b""), CALL))) == "INVALID_REQUEST"
    )


def test_an_error_names_what_it_is_about(flight, hundred):
    with pytest.raises(fl.FlightError) as caught:
        fetched(flight, "nowhere")
    error = typed(caught.value)
    assert isinstance(error, UnknownTopic)
    assert error.details["topic"] == "nowhere"
    assert "nowhere" in str(caught.value)  # also for those who only see the text


def test_a_projection_is_applied_at_the_leader(flight, log, topic):
    schema = pa.schema([("small", pa.int64()), ("large", pa.binary())])
    log.create_topic(topic, schema=schema)
    with log.producer() as producer:
        rows = {"small": [1] * 100, "large": [b"x" * 10_000] * 100}
        producer.append(topic, pa.record_batch(rows, schema=schema))
    ((batch, _),), _ = fetched(flight, topic, columns=["small"])
    assert (batch.schema.names, batch.num_rows) == (["small"], 100)
    assert pa.ipc.get_record_batch_size(batch) < 5000


def test_a_broker_that_appends_and_reads_needs_no_pandas(broker):
    """pyarrow imports it for some conversions: half of the broker's memory, at the first append."""
    with broker.connect() as log, broker.flight() as client:
        log.create_topic("t")
        log.create_topic("n", schema=NUMBERS)
        with log.producer() as producer:
            producer.send("t", b"v", key=b"k", headers=[("h", b"v")]).result(20)
            producer.append("n", numbers(0, 10)).result(20)
        fetched(client, "t", columns=["_offset", "_timestamp", "value"])
        fetched(client, "n", max_records=3)
        assert log.read("n", filter="n in (1, 2) and not n = 2").num_rows == 1
        maps = Path(f"/proc/{broker.pid}/maps").read_text()
        assert "/pandas/" not in maps
