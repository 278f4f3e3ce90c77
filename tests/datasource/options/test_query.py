"""The source's options: selections of topics, and errors of invalid ones."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from isolog.errors import InvalidOption
from spark_stream.datasource.options import sink_options, source_options
from spark_stream.datasource.options.query import Selection

PLACE = {"path": "x"}


def selection(**options: str) -> Selection:
    return source_options({**PLACE, **options}).selection


def test_topics_by_name_are_deduplicated() -> None:
    assert selection(subscribe=" b, a,,b ") == Selection(("b", "a"))


def test_a_pattern_matches_whole_names_of_topics() -> None:
    found = selection(subscribePattern="orders-.*|log")
    assert [
        name for name in ("orders-eu", "my-orders-eu", "log", "logs") if found.takes_topic(name)
    ]
    assert found.of(["log", "logs", "orders-eu", "orders"]) == ("log", "orders-eu")


def test_assigned_partitions_are_selected_by_number() -> None:
    found = selection(assign='{"a": [2, 0], "b": [1]}')
    assert found.names == ("a", "b")
    assert [n for n in range(4) if found.takes("a", n)] == [0, 2]
    assert not found.takes("c", 0)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "no topic is given"),
        (
            {"subscribe": "a", "subscribePattern": "a"},
            "subscribe, subscribePattern: a query has only one",
        ),
        (
            {"subscribe": "a", "assign": '{"a":[0]}'},
            "subscribe, assign: a query has only one",
        ),
        (
            {"subscribe": "a", "subscribePattern": "a", "assign": "{}"},
            "subscribe, subscribePattern, assign: a query has only one",
        ),
        ({"subscribe": " , "}, "subscribe is empty"),
        ({"subscribePattern": ""}, "subscribePattern is empty"),
        (
            {"subscribePattern": "ab(c"},
            "not a regular expression: missing ), unterminated subpattern at position 2: '(c'",
        ),
        ({"subscribePattern": "*"}, "nothing to repeat at position 0"),
        ({"assign": "a"}, "assign takes"),
        ({"assign": "[]"}, "assign takes"),
        ({"assign": "{}"}, "assign takes"),
        ({"assign": '{"a":[]}'}, "assign takes"),
        ({"assign": '{"a":0}'}, "assign takes"),
        ({"assign": '{"a":[-1]}'}, "assign takes"),
        ({"assign": '{"a":[true]}'}, "assign takes"),
        ({"assign": '{"a":["0"]}'}, "assign takes"),
        ({"assign": '{"a":[1,0,1]}'}, "duplicate partition a/1"),
        ({"assign": '{"a":[1],"a":[0]}'}, "duplicate topic 'a'"),
    ],
)
def test_empty_or_contradictory_selection_is_refused(options: dict[str, str], message: str) -> None:
    with pytest.raises(InvalidOption) as caught:
        selection(**options)
    assert message in caught.value.message


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"subscribe": "a"}, "topic 'b' is not subscribed to"),
        ({"subscribePattern": "a.*"}, "topic 'b' does not match subscribePattern 'a.*'"),
        ({"assign": '{"a":[0]}'}, "topic 'b' is not assigned"),
        ({"assign": '{"b":[0]}'}, "b/1 is not assigned"),
    ],
)
def test_start_of_an_unselected_partition_is_refused(options: dict[str, str], message: str) -> None:
    with pytest.raises(InvalidOption) as caught:
        selection(startingOffsets='{"b": {"1": 5}}', **options)
    assert f"startingOffsets: {message}" in caught.value.message


@pytest.mark.parametrize(
    ("text", "seconds"), [("500ms", 0.5), (" 10M ", 600), ("1h", 3600), (None, 120)]
)
def test_a_query_has_its_broker_timeout(text: str | None, seconds: float) -> None:
    given = {"subscribe": "a", "topic": "a"} | ({} if text is None else {"brokerTimeout": text})
    source = {**PLACE, **{name: given[name] for name in given if name != "topic"}}
    sink = {**PLACE, **{name: given[name] for name in given if name != "subscribe"}}
    assert source_options(source, streaming=True).place.timeout_s == seconds
    assert source_options(source, streaming=False).place.timeout_s == seconds
    assert sink_options(sink).place.timeout_s == seconds
    assert source_options(source).place.timeout_s == min(seconds, 30)  # only its columns yet


@pytest.mark.parametrize("text", ["", "30", "0s", "0ms", "-1s", "2h", "999999999999d"])
def test_invalid_broker_timeout_is_refused(text: str) -> None:
    with pytest.raises(InvalidOption, match="brokerTimeout takes a time"):
        selection(subscribe="a", brokerTimeout=text)


@pytest.mark.parametrize("read", [source_options, sink_options])
def test_credentials_are_not_among_the_values_of_options(read: Callable[..., Any]) -> None:
    topic = {source_options: "subscribe", sink_options: "topic"}[read]
    found = read({"bootstrap": "h:1", topic: "t", "user": "u", "password": "hush"})
    assert found.place.access.password == "hush"
    assert "hush" not in repr(found)
