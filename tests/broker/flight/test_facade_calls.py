"""Single Flight calls: each method, and each kind of invalid call."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import psutil
import pyarrow as pa
import pyarrow.flight as fl
import pytest

import isolog
from isolog.errors import UnknownTopic
from spark_stream.schema.schemas import DEFAULT_SCHEMA
from spark_stream.wire.calls import CALLS
from spark_stream.wire.messages import RUN_STEPS
from tests.broker.stamped import Owner
from tests.flight_calls import CALL, act_by_flight, answers, flight_client, ticket, typed
from tests.support import NUMBERS, Fetching, eventually, numbers, range_of
from tests.system.serving.test_calls import NEARLY_RIGHT


@pytest.fixture
def hundred(log: isolog.Log, topic: str) -> str:
    """The numbers 0 to 99 in ten batches of partition 0. Partition 1 is empty."""
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
    """Send one batch. Return its acknowledgement."""
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


def test_exchange_is_unsupported(flight, hundred):
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
    (["T", "\u0663"], "INVALID_REQUEST"),  # a digit that is not ASCII
    (["T", "2"], "UNKNOWN_PARTITION"),
    (["T", str(2**31)], "UNKNOWN_PARTITION"),
    (["T", str(2**70)], "UNKNOWN_PARTITION"),
    (["T", "9" * 5000], "UNKNOWN_PARTITION"),
    (["T", "0", "0"], "INVALID_REQUEST"),
    (["..", "0"], "UNKNOWN_TOPIC"),
]


@pytest.mark.parametrize(("path", "code"), PATHS, ids=[str(path)[:30] for path, _ in PATHS])
def test_invalid_path_is_refused(flight, hundred, path, code):
    descriptor = fl.FlightDescriptor.for_path(*[hundred if part == "T" else part for part in path])
    assert code_of(lambda: flight.get_flight_info(descriptor, CALL)) == code
    if path != ["T", "2"]:
        assert code_of(lambda: put(flight, descriptor, numbers(0, 1))) == code
    else:  # the stream is valid, but its batch has no partition
        assert put(flight, descriptor, numbers(0, 1))["error"]["code"] == code


def test_one_stream_serves_all_partitions_and_survives_a_bad_batch(flight, hundred):
    writer, replies = flight.do_put(command(topic=hundred), NUMBERS, CALL)
    envelopes = [(7, 0), (8, 1), (9, 5), (10, 1), (11, 0)]
    for number, partition in envelopes:
        envelope = json.dumps({"number": number, "partition": partition}).encode()
        writer.write_with_metadata(numbers(0, 2), envelope)
    answers = [json.loads(replies.read().to_pybytes()) for _ in envelopes]
    writer.close()
    for partition in range(2):  # the answers of a partition are in order
        numbered = [each["number"] for each in answers if each["partition"] == partition]
        assert numbered == [number for number, where in envelopes if where == partition]
    found = sorted(answers, key=lambda each: each["number"])
    assert [(each["number"], each["partition"]) for each in found] == envelopes
    assert [each.get("offset") for each in found] == [100, 0, None, 2, 102]
    assert found[2]["error"]["code"] == "UNKNOWN_PARTITION"


@pytest.mark.parametrize("compression", ["lz4", "zstd"])
def test_client_may_compress_batches(flight, hundred, compression):
    options = fl.FlightCallOptions(
        timeout=20, write_options=pa.ipc.IpcWriteOptions(compression=compression)
    )
    path = fl.FlightDescriptor.for_path(hundred, "1")
    assert put(flight, path, numbers(0, 10_000), options=options)["count"] == 10_000
    read = flight.do_get(ticket(hundred, 1), CALL).read_all()
    assert read["n"].to_pylist() == list(range(10_000))


def test_flight_info_of_a_fetch_has_its_ticket(flight, hundred):
    asked = command(topic=hundred, partition=0, start=90, columns=["_offset"])
    info = flight.get_flight_info(asked, CALL)
    assert info.schema.names == ["_offset"]
    (endpoint,) = info.endpoints
    rows = flight.do_get(endpoint.ticket, CALL).read_all()["_offset"].to_pylist()
    assert rows == list(range(90, 100))
    where = fl.FlightDescriptor.for_path(hundred, "0")
    assert flight.get_flight_info(where, CALL).total_records == 100


def test_every_endpoint_has_its_location(shared, flight, hundred):
    info = flight.get_flight_info(fl.FlightDescriptor.for_path(hundred), CALL)
    assert len(info.endpoints) == 2
    for endpoint in info.endpoints:
        (location,) = endpoint.locations
        with fl.FlightClient(location) as client:
            client.do_get(endpoint.ticket, CALL).read_all()
    assert location.uri.decode() == f"grpc://{act_by_flight(flight, 'status')['flight']}"


def test_flight_returns_the_schema_of_a_topic(flight, log, hundred, topic):
    log.create_topic(f"{topic}-default")
    for name, schema in ((hundred, NUMBERS), (f"{topic}-default", DEFAULT_SCHEMA)):
        found = flight.get_schema(fl.FlightDescriptor.for_path(name), CALL).schema
        assert found.equals(schema)


def test_listed_actions_are_the_calls(flight):
    found = {each.type: each.description for each in flight.list_actions()}
    assert found == {name: call.signature() for name, call in CALLS.items()}
    assert found["commit-transaction"] == "CommitTransaction → EndedTransaction"


def test_steps_between_brokers_cannot_be_called_over_flight(flight):
    with pytest.raises(fl.FlightError, match="there is no action 'run-steps'"):
        act_by_flight(flight, RUN_STEPS)


def test_every_listed_action_can_be_called(flight, hundred):
    """An empty message is answered by the actions without required fields, and else refused."""
    refuses = {"restore-metadata"}  # no metadata is missing
    for action in flight.list_actions(CALL):
        call = fl.Action(action.type, b"{}")
        fields = msgspec.structs.fields(CALLS[action.type])
        if action.type in refuses or any(each.required for each in fields):
            assert code_of(lambda c=call: list(flight.do_action(c, CALL))) == "INVALID_REQUEST"
        else:
            list(flight.do_action(call, CALL))
    assert (
        code_of(lambda: list(flight.do_action(fl.Action("drop", b""), CALL))) == "INVALID_REQUEST"
    )


def test_error_has_its_details(flight, hundred):
    with pytest.raises(fl.FlightError) as caught:
        list(answers(flight, ticket("nowhere")))
    error = typed(caught.value)
    assert isinstance(error, UnknownTopic)
    assert error.details["topic"] == "nowhere"
    assert "nowhere" in str(caught.value)  # the text alone has it too


def test_broker_appends_and_reads_without_pandas(broker):
    """pyarrow imports it for some conversions, which would take half of the broker's memory."""
    with broker.connect() as log, flight_client(broker.address) as client:
        log.create_topic("t")
        log.create_topic("n", schema=NUMBERS)
        with log.producer() as producer:
            producer.send("t", b"v", key=b"k", headers=[("h", b"v")]).result(20)
            producer.append("n", numbers(0, 10)).result(20)
        fetches = [
            range_of("t", columns=["_offset", "_timestamp", "value"]),
            range_of("n", max_records=3),
        ]
        with broker.channel() as channel:
            for fetch in fetches:
                assert len(list(Fetching(channel, fetch))) == 2
                assert len(list(answers(client, ticket(**fetch)))) == 2
        assert log.read("n", filter="n in (1, 2) and not n = 2").num_rows == 1
        maps = Path(f"/proc/{broker.pid}/maps").read_text()
        assert "/pandas/" not in maps


def test_generic_flight_client_can_read_a_topic(flight, hundred):
    info = flight.get_flight_info(fl.FlightDescriptor.for_path(hundred, "0"))
    assert info.schema.equals(NUMBERS)
    assert info.total_records == 100
    (endpoint,) = info.endpoints
    assert flight.do_get(endpoint.ticket).read_all().num_rows == 100
    assert any(each.descriptor.path[0].decode() == hundred for each in flight.list_flights())


@pytest.mark.parametrize("fields", NEARLY_RIGHT, ids=str)
def test_wrong_field_is_refused_by_both_calls(flight, hundred, fields):
    asked = {"topic": hundred, "partition": 0} | fields
    assert code_of(lambda: list(answers(flight, ticket(**asked)))) == "INVALID_REQUEST"
    if "start" not in fields and "wait_ms" not in fields:
        info = command(**asked)
        assert code_of(lambda: flight.get_flight_info(info, CALL)) == "INVALID_REQUEST"


@pytest.mark.parametrize("text", ["m = 1", "n = 'x'", "n =", "n + 1 = 2", "n = 1; drop table n"])
def test_bad_filter_is_refused_by_both_calls(flight, hundred, text):
    asked = command(topic=hundred, partition=0, filter=text)
    assert code_of(lambda: list(answers(flight, ticket(hundred, filter=text)))) == "INVALID_FILTER"
    assert code_of(lambda: flight.get_flight_info(asked, CALL)) == "INVALID_FILTER"


def test_tickets_of_a_broker_have_the_filter(flight, hundred):
    asked = command(topic=hundred, partition=0, filter="n = 5", columns=["n"])
    (endpoint,) = flight.get_flight_info(asked, CALL).endpoints
    assert flight.do_get(endpoint.ticket, CALL).read_all().to_pydict() == {"n": [5]}


def test_thread_of_a_disconnected_following_reader_ends(broker):
    with broker.connect() as log, flight_client(broker.address) as flight:
        log.create_topic("t", schema=NUMBERS)
        process = psutil.Process(broker.pid)
        act_by_flight(flight, "status")
        readers = [flight.do_get(ticket("t", start=0, follow=True)) for _ in range(20)]
        busy = process.num_threads()
        for reader in readers:
            reader.cancel()
        with log.producer() as producer:
            producer.append("t", numbers(0, 1)).result(20)
        eventually(lambda: process.num_threads() < busy - 10)
        assert broker.terminate(5) == 0


def test_append_to_a_topic_of_another_id_is_refused(flight, hundred):
    stale = command(topic=hundred, topic_id="another")
    assert code_of(lambda: put(flight, stale, numbers(0, 1))) == "UNKNOWN_TOPIC"


def test_stamped_batch_of_a_transaction_is_appended_once(flight, channel, hundred):
    """The descriptor names the transactional id, and the envelope has the stamp."""
    owner = Owner(channel).begin()
    stamp = {"producer_id": owner.producer, "epoch": owner.epoch, "sequence": 0}
    envelope = {"partition": 1, "stamp": stamp | {"transaction": owner.number}}
    where = command(topic=hundred, transactional_id=owner.name)
    found = [put(flight, where, numbers(0, 3), envelope) for _ in range(2)]
    assert [(each["offset"], each["duplicate"]) for each in found] == [(0, False), (0, True)]
    owner.commit()
    committed = flight.do_get(ticket(hundred, 1, isolation="read_committed"), CALL).read_all()
    assert committed["n"].to_pylist() == [0, 1, 2]
