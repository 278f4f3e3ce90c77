"""Plain calls of Arrow Flight, for tests of the facade and of programs that use it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pyarrow.flight as fl

from spark_stream.broker.flight.facade import location
from spark_stream.errors import BY_CODE, IsologError, from_wire
from tests.support import Channel, act, range_of

CALL = fl.FlightCallOptions(timeout=20)
SERVED = 'flight_listen = "127.0.0.1:0"\n'
"""The setting of a broker that serves Flight."""


def flight_address(address: str) -> str:
    """Return the Flight address of the broker at an address."""
    with Channel(address) as channel:
        return str(act(channel, "status")["flight"])


def flight_client(address: str) -> fl.FlightClient:
    """Return a Flight client of the broker at an address, on a new connection."""
    place = location(flight_address(address))
    return fl.FlightClient(place, generic_options=[("grpc.use_local_subchannel_pool", 1)])


def act_by_flight(client: fl.FlightClient, name: str, body: bytes = b"{}") -> dict[str, Any]:
    """Return the answer of an action."""
    (answer,) = client.do_action(fl.Action(name, body), CALL)
    return dict(json.loads(answer.body.to_pybytes()))


def ticket(topic: str, partition: int = 0, **fields: Any) -> fl.Ticket:
    return fl.Ticket(json.dumps({"ranges": [range_of(topic, partition, **fields)]}).encode())


def answers(client: fl.FlightClient, asked: fl.Ticket) -> Iterator[tuple[pa.RecordBatch, Any]]:
    """Yield each batch of a DoGet with its app_metadata."""
    for chunk in client.do_get(asked, CALL):
        yield chunk.data, json.loads(chunk.app_metadata.to_pybytes())


def typed(error: Exception) -> IsologError:
    """Return the error in ``extra_info``. Each has a known code, a message and a hint."""
    info = getattr(error, "extra_info", None)
    assert info, f"an error without extra_info: {type(error).__name__}: {error}"
    value = json.loads(info)
    assert value["code"] in BY_CODE, value
    assert value["message"], value
    assert value["hint"], value
    return from_wire(value)
