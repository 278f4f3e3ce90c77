"""Errors in Flight: an error of any length keeps its class."""

from __future__ import annotations

import json
from urllib.parse import quote

import pyarrow.flight as fl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from isolog.errors import InvalidTopic, OffsetEvicted
from spark_stream.broker.flight.facade import to_flight
from spark_stream.errors import from_wire
from spark_stream.wire.limits import ERROR_BYTES_MAX


@given(st.text(st.characters(codec="utf-8")), st.integers(0, 3), st.integers(1, 4_000))
def test_long_error_keeps_its_class_and_its_short_details(words, plain, times):
    text = "x" * plain + words * times
    error = OffsetEvicted(text, hint=text or "h.", offset=7, listed=text)
    flown = to_flight(error)
    assert len(flown.extra_info) <= ERROR_BYTES_MAX
    assert len(quote(str(flown))) <= ERROR_BYTES_MAX + len(quote(str(type(flown))))
    other = from_wire(json.loads(flown.extra_info))
    assert type(other) is OffsetEvicted
    assert other.offset == 7
    if len(json.dumps(error.to_wire())) <= ERROR_BYTES_MAX // 2:
        assert other.message == text
        assert other.details == error.details


@pytest.mark.parametrize("letter", ["x", "é", "\x00"])
def test_error_of_any_length_is_received(letter):
    """Flight drops data that is too long for gRPC's trailers, sometimes or always."""

    class Refusing(fl.FlightServerBase):
        def do_action(self, context, action):
            raise to_flight(InvalidTopic(letter * int(action.type), topic=letter * 10_000))

    with (
        Refusing("grpc://127.0.0.1:0") as server,
        fl.connect(f"grpc://127.0.0.1:{server.port}") as to,
    ):
        for length in (10, 1_000, 5_000, 100_000) * 10:
            with pytest.raises(fl.FlightServerError) as caught:
                list(to.do_action(fl.Action(str(length), b"")))
            assert isinstance(from_wire(json.loads(caught.value.extra_info)), InvalidTopic)
