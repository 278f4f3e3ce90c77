"""The search for records over partitions, and one record as a whole, with a real broker."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from typing import Any

import pyarrow as pa
import pytest

from spark_stream.console import search
from spark_stream.console.records import formatted
from tests.console.test_app_api import console, mixed, records, values
from tests.support import NUMBERS, log, numbers, shared, topic

pytestmark = [pytest.mark.slow, pytest.mark.timeout(120)]
__all__ = ["console", "log", "mixed", "shared", "topic"]

START = datetime(2024, 5, 1, tzinfo=UTC)


def places(found: dict[str, Any], side: str) -> str:
    return ",".join(f"{number}:{each[side]}" for number, each in found["ranges"].items())


@pytest.fixture
def skewed(log, topic) -> str:
    """A topic whose partition 1 has the newest 8 of 12 records."""
    log.create_topic(topic, partitions=3)
    with log.producer() as producer:
        for n in range(12):
            at = START + timedelta(minutes=n)
            place = 1 if n >= 4 else 2 * (n % 2)
            producer.send(topic, f"{n}", partition=place, timestamp=at)
        producer.flush()
    return topic


def texts(found: dict[str, Any]) -> list[int]:
    return [int(row["values"]["value"]) for row in found["rows"]]


@pytest.mark.parametrize("order", ["newest", "oldest"])
def test_search_orders_records_of_all_partitions_by_time(console, skewed, order):
    asked = {"order": order, "limit": 5}
    found = records(console, skewed, **asked)
    names = {"newest": ("before", "start"), "oldest": ("after", "end")}[order]
    seen = texts(found)
    assert seen == {"newest": [11, 10, 9, 8, 7], "oldest": [0, 1, 2, 3, 4]}[order]
    while not all(each["is_whole"] for each in found["ranges"].values()):
        found = records(console, skewed, **asked, **{names[0]: places(found, names[1])})
        seen += texts(found)
    assert seen == sorted(range(12), reverse=order == "newest")


@pytest.mark.rule("the continuation of a search in the console", "console/search.py")
def test_search_that_ran_out_of_time_continues(console, skewed, monkeypatch):
    """Each step finds a part. Together they are the page of a search without a limit of time."""
    monkeypatch.setattr(search, "_WINDOW_MAX", 1)
    asked = {"filter": "value in ('0', '6', '9')", "limit": 3}
    whole = records(console, skewed, **asked)
    assert texts(whole) == [9, 6, 0]
    monkeypatch.setattr(search, "_PATIENCE_S", -1.0)
    found = records(console, skewed, **asked)
    origin, rows, steps = places(found, "origin"), texts(found), 1
    while not all(each["is_whole"] for each in found["ranges"].values()):
        left = asked | {"limit": 3 - len(rows) or 1, "before": origin}
        found = records(console, skewed, **left, reached=places(found, "reached"))
        rows, steps = rows + texts(found), steps + 1
        if len(rows) == 3:
            break
    assert steps > 3
    assert sorted(rows) == [0, 6, 9]
    known: dict[str, Any] = {}
    exec(found["python"], known)
    assert len(known["rows"]) == 3


def test_search_starts_at_an_offset(console, mixed):
    assert values(records(console, mixed, offset=12)) == [14, 13, 12]
    assert values(records(console, mixed, offset=9, order="oldest", limit=2)) == [9, 10]
    assert values(records(console, mixed, offset=999)) == []


def test_page_has_the_chosen_columns(console, log, topic):
    names = [f"c{n}" for n in range(30)]
    log.create_topic(topic, schema=pa.schema([(name, pa.int64()) for name in names]))
    with log.producer() as producer:
        row = {name: [n] for n, name in enumerate(names)}
        producer.append(topic, pa.record_batch(row)).result()
    found = records(console, topic)
    assert found["shown"] == names[:20]
    assert [each["name"] for each in found["columns"]] == names
    found = records(console, topic, column=["c29", "c3"], filter="c7 = 7")
    assert found["shown"] == ["c3", "c29"]
    assert [row["values"] for row in found["rows"]] == [{"c3": "3", "c29": "29"}]
    answer = console.get("/api/records", params={"topic": topic, "column": "nowhere"})
    assert (answer.status_code, answer.json()["error"]["code"]) == (400, "SCHEMA_MISMATCH")


def test_one_record_has_whole_values_and_types(console, log, topic):
    log.create_topic(topic)
    body = json.dumps({"id": 12345678901234567890, "price": 1.10, "text": "x" * 5000, "tags": []})
    with log.producer() as producer:
        producer.send(topic, body, key=b"k", headers=[("lang", b"en")], timestamp=START).result()
    [row] = records(console, topic)["rows"]
    assert "more characters" in row["values"]["value"]
    found = console.get("/api/record", params={"topic": topic, "partition": 0, "offset": 0}).json()
    fields = {each["name"]: each for each in found["fields"]}
    assert (fields["key"]["text"], fields["key"]["type"]) == ("k", "binary")
    assert fields["value"]["is_json"]
    assert json.loads(fields["value"]["text"]) == json.loads(body)
    assert '\n  "price": 1.1,' in fields["value"]["text"]
    assert "lang" in fields["headers"]["text"]
    assert (found["state"], found["timestamp"]) == ("committed", "2024-05-01T00:00:00Z")
    assert json.loads(found["json"])["value"] == body


def test_a_record_in_an_open_transaction_has_its_state(console, mixed):
    found = console.get("/api/record", params={"topic": mixed, "partition": 0, "offset": 12}).json()
    assert (found["state"], found["fields"][0]["text"]) == ("open", "12")


@pytest.mark.parametrize(
    ("place", "code"),
    [
        ({"partition": "9"}, "UNKNOWN_PARTITION"),
        ({"partition": "x"}, "INVALID_OPTION"),
        ({"offset": "-1"}, "INVALID_OPTION"),
        ({"offset": "999"}, "OFFSET_OUT_OF_RANGE"),
        ({"offset": "15"}, "INVALID_OPTION"),
        ({"topic": "nowhere"}, "UNKNOWN_TOPIC"),
    ],
)
def test_places_without_a_record_get_typed_errors(console, mixed, place, code):
    asked = {"topic": mixed, "partition": "0", "offset": "0"} | place
    answer = console.get("/api/record", params=asked)
    assert answer.status_code in (400, 404)
    assert answer.json()["error"]["code"] == code


def test_a_search_of_many_partitions_is_one_page(console, log, topic):
    log.create_topic(topic, schema=NUMBERS, partitions=100)
    with log.producer() as producer:
        for number in range(0, 100, 9):
            producer.append(topic, numbers(number, 2), partition=number)
    found = records(console, topic, filter="n in (1, 28, 100)", limit=20)
    assert sorted(values(found)) == [1, 28, 100]
    assert all(each["is_whole"] for each in found["ranges"].values())


def test_formatted_json_keeps_digits_order_and_duplicates():
    text = '{"b": 1.10, "a": [1, {"x": "{,"}], "a": {}, "e": [], "n": 123456789012345678901}'
    assert formatted(text) == (
        '{\n  "b": 1.10,\n  "a": [\n    1,\n    {\n      "x": "{,"\n    }\n  ],\n'
        '  "a": {},\n  "e": [],\n  "n": 123456789012345678901\n}'
    )
    for wrong in ("{", "[" * 100_000, "x", '{"a": }'):
        assert formatted(wrong) is None
