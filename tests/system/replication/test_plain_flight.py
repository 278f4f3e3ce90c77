"""Any Flight client can read a cluster, for example pyarrow without isolog."""

from __future__ import annotations

import contextlib
import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.flight as fl
import pytest

from isolog.errors import IsologError
from isolog.testing import LocalCluster
from tests.docs.test_flight_page import NO_ISOLOG, PAGE
from tests.flight_calls import CALL, flight_address, flight_client, ticket, typed
from tests.system.replication.clusters import await_in_sync

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def shared() -> Iterator[LocalCluster]:
    """Three brokers with a Flight listener."""
    with LocalCluster(3, conf={"flight_listen": "127.0.0.1:0"}) as found:
        yield found


@pytest.fixture(scope="module")
def flights(shared: LocalCluster) -> LocalCluster:
    """A topic with a partition at each of three leaders, and aborted records in each."""
    with shared.connect() as log:
        schema = pa.schema([("carrier", pa.string()), ("delay", pa.int64())])
        assignment = [list(each) for each in ("123", "231", "312")]
        log.create_topic("flights", assignment=assignment, schema=schema)
        await_in_sync(log, "flights")
        with log.producer(transactional_id="loader") as producer:
            with producer.transaction():
                for number in range(3):
                    producer.append("flights", rows("kept", number), number)
            with contextlib.suppress(KeyboardInterrupt), producer.transaction():
                for number in range(3):
                    producer.append("flights", rows("aborted", number), number)
                producer.flush()
                raise KeyboardInterrupt
    return shared


def rows(carrier: str, number: int) -> pa.RecordBatch:
    return pa.record_batch({"carrier": [f"{carrier}-{number}"] * 4, "delay": [0, 10, 20, 30]})


def read(cluster: LocalCluster, **asked: Any) -> tuple[list[dict[str, Any]], set[bytes]]:
    """Return the rows of a command, and the URIs of their leaders."""
    client = flight_client(cluster.broker(1).address)
    command = json.dumps({"topic": "flights"} | asked)
    info = client.get_flight_info(fl.FlightDescriptor.for_command(command), CALL)
    found: list[dict[str, Any]] = []
    for endpoint in info.endpoints:
        with fl.connect(endpoint.locations[0]) as leader:
            found += leader.do_get(endpoint.ticket, CALL).read_all().to_pylist()
    return found, {endpoint.locations[0].uri for endpoint in info.endpoints}


def test_example_of_the_flight_page_reads_three_brokers(
    flights: LocalCluster, tmp_path: Path
) -> None:
    [code, *_] = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    code = code.replace('"greetings"', '"flights"') + 'print(table["carrier"].to_pylist())\n'
    place = flight_address(flights.broker(2).address)
    done = subprocess.run(
        [sys.executable, "-I", "-c", NO_ISOLOG + code, place],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    assert all(f"kept-{number}" in done.stdout for number in range(3))
    assert "aborted" not in done.stdout


def test_command_has_isolation_columns_filter_and_range(flights: LocalCluster) -> None:
    found, places = read(flights, isolation="read_committed", columns=["delay"], filter="delay > 5")
    assert found == 3 * [{"delay": 10}, {"delay": 20}, {"delay": 30}]
    assert len(places) == 3
    found, places = read(flights, partition=1, start=2, end=6)
    assert [each["carrier"] for each in found] == ["kept-1"] * 2 + ["aborted-1"] * 2
    assert len(places) == 1


@pytest.mark.parametrize(
    ("asked", "error", "code"),
    [
        ({"topic": "nowhere"}, fl.FlightServerError, "UNKNOWN_TOPIC"),
        ({"partition": 7}, fl.FlightServerError, "UNKNOWN_PARTITION"),
        ({"columns": ["no"]}, fl.FlightServerError, "SCHEMA_MISMATCH"),
        ({"filter": "delay >"}, fl.FlightServerError, "INVALID_FILTER"),
        ({"isolation": "read_all"}, fl.FlightServerError, "INVALID_REQUEST"),
        ({"unheard": 1}, fl.FlightServerError, "INVALID_REQUEST"),
    ],
)
def test_error_of_a_command_has_its_code_and_hint_in_text_and_details(
    flights: LocalCluster, asked: dict[str, Any], error: type[Exception], code: str
) -> None:
    with pytest.raises(error, match=rf"^\[{code}\] .* \(.+\)") as caught:
        read(flights, **asked)
    found = json.loads(caught.value.extra_info)
    assert found["code"] == code
    assert found["hint"]


def test_read_of_a_partition_at_a_follower_is_unavailable(
    flights: LocalCluster,
) -> None:
    client = flight_client(flights.broker(1).address)
    with pytest.raises(fl.FlightUnavailableError) as caught:
        client.do_get(ticket("flights", 1), CALL).read_all()
    error: IsologError = typed(caught.value)
    assert error.code == "NOT_LEADER"
