"""Conversion of datetimes to microseconds since 1970, exact, also before 1970."""

from __future__ import annotations

import time
from datetime import UTC, datetime, timedelta, timezone

import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from isolog.errors import InvalidRecord
from spark_stream.client.values import timestamp_us, to_microseconds

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
offsets = st.integers(-14 * 60, 14 * 60).map(lambda minutes: timezone(timedelta(minutes=minutes)))
moments = st.datetimes(datetime(2, 1, 1), datetime(9998, 1, 1), timezones=offsets)


@given(moments)
def test_a_moment_is_exact_to_the_microsecond(moment):
    assert EPOCH + timedelta(microseconds=to_microseconds(moment)) == moment


@given(moments, moments)
def test_a_later_moment_is_a_greater_number(one, other):
    assert (one < other) == (to_microseconds(one) < to_microseconds(other))


def test_the_last_microsecond_before_1970():
    assert to_microseconds(EPOCH - timedelta(microseconds=1)) == -1


@pytest.mark.parametrize("kind", [datetime, pd.Timestamp])
def test_a_datetime_without_a_zone_is_in_utc_in_any_machine_zone(monkeypatch, kind):
    monkeypatch.setenv("TZ", "Asia/Kolkata")
    time.tzset()
    try:
        assert to_microseconds(kind(1970, 1, 1)) == 0
    finally:
        monkeypatch.undo()
        time.tzset()


def test_a_records_timestamp_is_in_milliseconds_as_with_kafka():
    assert timestamp_us(-1) == -1000
    assert timestamp_us(1_700_000_000_123) == 1_700_000_000_123_000
    assert timestamp_us(EPOCH + timedelta(microseconds=7)) == 7


def test_a_record_without_a_timestamp_gets_the_present_time():
    before = time.time_ns() // 1000
    assert before <= timestamp_us(None) <= time.time_ns() // 1000


@pytest.mark.parametrize("other", [1.7e9, "2026-01-01", True])
def test_an_invalid_timestamp_is_refused(other):
    """Such as ``time.time()``, which as milliseconds would be in January 1970."""
    with pytest.raises(InvalidRecord, match="takes whole milliseconds since 1970, or a datetime"):
        timestamp_us(other)


def test_pandas_timestamps_are_accepted():
    assert timestamp_us(pd.Timestamp("1970-01-01T00:00:00.000007", tz="UTC")) == 7
    assert timestamp_us(pd.Timestamp(2020, 1, 1)) == timestamp_us(datetime(2020, 1, 1))


@pytest.mark.parametrize("far", [2**63 // 1000 + 1, -(2**63) // 1000 - 1, 2**70])
def test_a_timestamp_out_of_range_is_refused_by_name(far):
    with pytest.raises(InvalidRecord, match=f"timestamp {far} is out of range"):
        timestamp_us(far)


@pytest.mark.parametrize("end", [datetime.min, datetime.max])
@pytest.mark.parametrize("hours", [-23, 23])
def test_the_ends_of_the_calendar_have_numbers_in_each_zone(end, hours):
    zone = timezone(timedelta(hours=hours))
    shift = hours * 3_600_000_000
    assert to_microseconds(end.replace(tzinfo=zone)) == to_microseconds(end) - shift
