"""Topic settings as users write them: the error for an invalid value has its setting and range."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from isolog.errors import InvalidConfig
from spark_stream.storage.settings import (
    SETTINGS,
    Compression,
    Flush,
    LogSettings,
    parse_settings,
    shown_settings,
)

NUMBERS = {
    "max.record.bytes": (1, 512 << 20),
    "segment.bytes": (64 << 10, 1 << 30),
    "segment.ms": (100, 10**15),
    "segment.entries": (16, 1 << 22),
    "retention.ms": (100, 10**15),
    "retention.bytes": (1, 10**18),
    "local.retention.ms": (100, 10**15),
    "local.retention.bytes": (1, 10**18),
    "flush.ms": (10, 10**9),
    "min.insync.replicas": (1, 1000),
    "replica.lag.time.max.ms": (100, 10**9),
}
CHOICES = {"flush": Flush, "compression": Compression}
SWITCHES = ("unclean.leader.election",)
NAMES = ("partition.by",)


@pytest.mark.rule("the settings of a topic, and their ranges", "storage/settings.py")
def test_every_setting_has_a_test_here():
    assert set(SETTINGS) == {*NUMBERS, *CHOICES, *SWITCHES, *NAMES}


@pytest.mark.parametrize(("name", "bounds"), NUMBERS.items())
def test_number_accepts_exactly_its_range(name, bounds):
    low, high = bounds
    for good in (low, high, str(low), f" {high} "):
        assert getattr(parse_settings({name: good}), SETTINGS[name]) == int(good)
    for bad in (low - 1, high + 1, -2):
        with pytest.raises(InvalidConfig, match=rf"{name} takes {low} to {high}.*not {bad}\b"):
            parse_settings({name: bad})


@pytest.mark.parametrize("name", NUMBERS)
@pytest.mark.parametrize("bad", ["", "many", "1.5", "1e6", "10 MiB", None, [], {}, 1.0, True])
def test_number_refuses_other_values(name, bad):
    with pytest.raises(InvalidConfig, match=f"{name} takes a whole number") as caught:
        parse_settings({name: bad})
    assert caught.value.details == {"setting": name}
    assert repr(bad) in str(caught.value)


@pytest.mark.parametrize("name", NUMBERS)
def test_minus_one_means_no_limit_if_allowed(name):
    if "retention." in name:
        assert getattr(parse_settings({name: "-1"}), SETTINGS[name]) == -1
    else:
        with pytest.raises(InvalidConfig, match=name):
            parse_settings({name: "-1"})


@pytest.mark.parametrize(("name", "kind"), CHOICES.items())
def test_choice_accepts_its_words_in_any_case(name, kind):
    for word in kind:
        assert getattr(parse_settings({name: f" {word.upper()}"}), name) is word
    with pytest.raises(InvalidConfig) as caught:
        parse_settings({name: "gzip"})
    assert f"{name} takes {' | '.join(kind)}, not 'gzip'" in str(caught.value)


@pytest.mark.parametrize("name", SWITCHES)
def test_switch_is_true_or_false(name):
    for good, value in (("true", True), (" False ", False), (True, True), (False, False)):
        assert getattr(parse_settings({name: good}), SETTINGS[name]) is value
    for bad in ("", "yes", "1", 1, 0, None, []):
        with pytest.raises(InvalidConfig) as caught:
            parse_settings({name: bad})
        assert f"{name} takes true | false, not {bad!r}" in str(caught.value)
        assert caught.value.details == {"setting": name}
    assert shown_settings(parse_settings({name: "true"}))[name] == "true"


@pytest.mark.parametrize("name", NAMES)
def test_names_are_separated_by_commas(name):
    for text, found in (("", ()), (" ", ()), ("a", ("a",)), (" a ,b", ("a", "b"))):
        assert getattr(parse_settings({name: text}), SETTINGS[name]) == found
        assert shown_settings(parse_settings({name: text}))[name] == ",".join(found)


@pytest.mark.parametrize(
    ("wrong", "meant"),
    [
        ("segment.byte", "segment.bytes"),
        ("retention_ms", "retention.ms"),
        ("compresion", "compression"),
        ("max.message.bytes", "max.record.bytes"),
    ],
)
def test_unknown_setting_is_refused_with_the_nearest_name(wrong, meant):
    with pytest.raises(InvalidConfig, match=f"unknown setting '{wrong}'; did you mean '{meant}'"):
        parse_settings({wrong: "1"})


@pytest.mark.parametrize("name", ["zzz", "replicas"])
def test_unknown_setting_without_a_near_name_is_refused_with_all_names(name):
    with pytest.raises(InvalidConfig) as caught:
        parse_settings({name: "1"})
    assert "did you mean" not in str(caught.value)
    for name in SETTINGS:
        assert name in str(caught.value)


def test_other_settings_keep_their_values():
    base = LogSettings(segment_bytes=1 << 20, flush=Flush.BATCH)
    changed = parse_settings({"segment.ms": "1000"}, base)
    assert (changed.segment_bytes, changed.flush, changed.segment_ms) == (1 << 20, "batch", 1000)
    assert parse_settings({}, base) == base


@pytest.mark.parametrize("unit", ["ms", "bytes"])
def test_the_log_keeps_no_more_than_the_table(unit):
    with pytest.raises(InvalidConfig, match=rf"local.retention.{unit} \(1001\) is larger than"):
        parse_settings({f"retention.{unit}": "1000", f"local.retention.{unit}": "1001"})
    for whole in ("1000", "1001", "-1"):
        parse_settings({f"retention.{unit}": whole, f"local.retention.{unit}": "1000"})


def test_local_retention_is_that_of_the_log_where_it_is_set():
    found = parse_settings({"local.retention.bytes": "500", "retention.bytes": "1000"})
    assert (found.kept_ms, found.kept_bytes, found.needs_table) == (-1, 500, True)
    found = parse_settings({"retention.ms": "2000"}, found)
    assert (found.kept_ms, found.kept_bytes) == (2000, 500)
    found = parse_settings({"local.retention.bytes": "-1"}, found)
    assert (found.kept_ms, found.kept_bytes, found.needs_table) == (2000, 1000, False)


@given(
    st.builds(
        LogSettings,
        segment_bytes=st.integers(64 << 10, 1 << 30),
        retention_ms=st.just(-1) | st.integers(100, 10**15),
        flush=st.sampled_from(Flush),
        compression=st.sampled_from(Compression),
        unclean_leader_election=st.booleans(),
    )
)
def test_settings_survive_a_round_trip_through_text(settings):
    shown = shown_settings(settings)
    assert all(isinstance(value, str) for value in shown.values())
    assert parse_settings(shown) == settings
