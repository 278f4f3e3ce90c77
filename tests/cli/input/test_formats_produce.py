"""``produce`` with broken files, precise timestamps, missing columns, and output of consume."""

from __future__ import annotations

import datetime as dt
import json
from decimal import Decimal
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from spark_stream.sql.ddl import parse_schema, schema_text
from tests.cli.conftest import Call, Served

MOMENT = dt.datetime(2024, 1, 2, 3, 4, 5, 6, tzinfo=dt.UTC)


@pytest.fixture
def there(served: Served, call: Call, monkeypatch: pytest.MonkeyPatch) -> Call:
    """Commands in this process with the address of the module's broker."""
    monkeypatch.setenv("ISOLOG_BOOTSTRAP", served.bootstrap)
    return call


def copied(there: Call, file: Path, source: str, target: str) -> str:
    """Copy records from topic to topic through JSON, and return the JSON."""
    printed = there("consume", source, "--output", "json", "--metadata")
    assert printed.code == 0, printed.err
    file.write_text(printed.out)
    sent = there("produce", target, "--format", "json", "--file", str(file))
    assert sent.code == 0, sent.err
    return printed.out


def test_json_of_a_typed_topic_gives_the_same_records_in_the_same_partitions(
    served, there, tmp_path
):
    schema = (
        parse_schema(
            "i bigint, p decimal(38,10), d double, x binary, ts timestamp, ntz timestamp_ntz,"
            " t time, day date, m map<bigint,array<double>>, s struct<a:float,b:binary>"
        )
        .append(pa.field("u", pa.uint64()))
        .append(pa.field("took", pa.duration("us")))
    )
    row = {
        "i": 2**63 - 1,
        "p": Decimal("1234567890123456789012345678.0000000001"),
        "d": float("-inf"),
        "x": b"\xff\x00",
        "ts": MOMENT,
        "ntz": dt.datetime(9999, 12, 31, 23, 59, 59, 999999),
        "t": dt.time(23, 59, 59, 999999),
        "day": dt.date(1, 1, 1),
        "m": [(2**53 + 1, [1.5, None]), (-1, None)],
        "s": {"a": None, "b": b""},
        "u": 2**64 - 1,
        "took": dt.timedelta(days=-1, microseconds=1),
    }
    for name in ("typed-a", "typed-b"):
        served.log.create_topic(name, partitions=3, schema=schema)
    with served.log.producer() as producer:
        producer.append("typed-a", pa.RecordBatch.from_pylist([row, {}], schema), partition=2)
        producer.append("typed-a", pa.RecordBatch.from_pylist([row], schema), partition=0)
    copied(there, tmp_path / "a.jsonl", "typed-a", "typed-b")
    a, b = (served.log.read(name, metadata=True) for name in ("typed-a", "typed-b"))
    assert b.num_rows == 3
    same = [*schema.names, "_partition", "_offset"]
    assert a.select(same).equals(b.select(same))


def test_json_of_kafka_like_records_gives_the_same_records(served, there, tmp_path):
    for name in ("raw-a", "raw-b"):
        served.log.create_topic(name, partitions=2)
    with served.log.producer() as producer:
        for number in range(2):
            producer.send(
                "raw-a",
                b"\xff\xfe",
                key=b"k\x80",
                headers=[("h", b"\xc3"), ("n", None)],
                timestamp=MOMENT,
                partition=number,
            )
            producer.send("raw-a", '{"base64":"/w=="}', key=None, partition=number)
            producer.send("raw-a", None, key=b"", headers=[], partition=number)
    lines = copied(there, tmp_path / "a.jsonl", "raw-a", "raw-b").splitlines()
    assert [json.loads(line)["value"] for line in lines[:3]] == [
        {"base64": "//4="},
        '{"base64":"/w=="}',
        None,
    ]
    a, b = (
        served.log.read(name, headers=True).drop_columns(["topic"]) for name in ("raw-a", "raw-b")
    )
    assert b.num_rows == 6
    assert a.equals(b)


def test_unknown_partition_in_a_record_is_refused_without_the_option(served, there, tmp_path):
    served.log.create_topic("small")
    (tmp_path / "a.jsonl").write_text('{"value":"a","partition":0}\n{"value":"b","partition":3}\n')
    command = ("produce", "small", "--format", "json", "--file", str(tmp_path / "a.jsonl"))
    refused = there(*command)
    assert refused.code == 1
    assert (
        "record 2: column 'partition' is 3, and topic 'small' has partitions 0 to 0" in refused.err
    )
    assert "--partition" in refused.err
    assert served.log.describe("small").partitions[0].log_end_offset == 0
    taken = there(*command, "--partition", "0")
    assert taken.code == 0, taken.err


def test_unclosed_quote_is_refused_and_earlier_records_stay(served, there, tmp_path):
    served.log.create_topic("quotes", schema=parse_schema("id bigint, name string"))
    (tmp_path / "a.csv").write_text('id,name\n1,"a\nb"\n2,"b\n3,c\n4,d\n')
    refused = there("produce", "quotes", "--file", str(tmp_path / "a.csv"))
    assert refused.code == 1
    summary, error = refused.err.splitlines()
    assert summary == "1 record to quotes"
    assert error.startswith("error: a quote is not closed before the end of the input")
    assert "starts on line 4" in error
    assert served.log.read("quotes").to_pylist() == [{"id": 1, "name": "a\nb"}]
    new = there("produce", "no-quotes", "--file", str(tmp_path / "a.csv"), "--create")
    assert new.code == 1
    assert "no-quotes" not in served.log.topics()


def test_nullable_columns_may_be_missing_in_csv(served, there, tmp_path):
    served.log.create_topic("lacking", schema=parse_schema("id bigint NOT NULL, n int, s string"))
    (tmp_path / "a.csv").write_text("s,id\nx,1\n")
    assert there("produce", "lacking", "--file", str(tmp_path / "a.csv")).code == 0
    assert served.log.read("lacking").to_pylist() == [{"id": 1, "n": None, "s": "x"}]
    (tmp_path / "b.csv").write_text("s\nx\n")
    refused = there("produce", "lacking", "--file", str(tmp_path / "b.csv"))
    assert refused.code == 1
    assert "column 'id' (bigint) is missing" in refused.err


def fine_table(extra_ns: int) -> pa.Table:
    """Return all units of times and timestamps. ``extra_ns`` makes one timestamp more precise."""
    ns = pa.array([1_700_000_000_123_456_000 + extra_ns, None], pa.int64()).cast(pa.timestamp("ns"))
    day = pa.array([86_399_999, None], pa.int32()).cast(pa.time32("ms"))
    return pa.table(
        {
            "t32": day,
            "t32s": pa.array([1, None], pa.int32()).cast(pa.time32("s")),
            "t64": pa.array([1, None], pa.int64()).cast(pa.time64("us")),
            "t64ns": pa.array([1, None], pa.int64()).cast(pa.time64("ns")),
            "ms": ns.cast(pa.timestamp("ms", "UTC"), safe=False),
            "ns": ns,
            "nested": pa.array(
                [[{"at": 1_000}], None], pa.list_(pa.struct([("at", pa.timestamp("ns"))]))
            ),
        }
    )


@pytest.mark.parametrize("kind", ["parquet", "arrow"])
def test_topic_created_from_a_file_accepts_the_file(served, there, tmp_path, kind):
    file, name = tmp_path / f"a.{kind}", f"fine-{kind}"
    table = fine_table(0)
    if kind == "parquet":
        pq.write_table(table, file)
    else:
        with pa.ipc.new_file(file, table.schema) as writer:
            writer.write_table(table)
    made = there("produce", name, "--file", str(file), "--create")
    assert made.code == 0, made.err
    assert schema_text(served.log.describe(name).schema) == (
        "t32 time, t32s time, t64 time, t64ns time, ms timestamp, ns timestamp_ntz,"
        " nested array<struct<at:timestamp_ntz>>"
    )
    found = served.log.read(name)
    for column in ("t32", "t32s", "t64", "t64ns", "ms", "ns"):
        assert pc.equal(found[column], table[column].cast(found[column].type)).to_pylist()[0]


def test_too_precise_timestamp_is_refused_before_the_topic_is_created(served, there, tmp_path):
    pq.write_table(fine_table(1), tmp_path / "a.parquet")
    refused = there("produce", "too-fine", "--file", str(tmp_path / "a.parquet"), "--create")
    assert refused.code == 1
    assert "record 1: column 'ns': 2023-11-14T22:13:20.123456001 does not fit" in refused.err
    assert "Round the column" in refused.err
    assert "too-fine" not in served.log.topics()


def test_too_precise_timestamp_in_text_creates_no_topic(served, there, tmp_path):
    (tmp_path / "a.csv").write_text("at\n2024-01-01T00:00:00.123456789\n")
    refused = there("produce", "fine-text", "--file", str(tmp_path / "a.csv"), "--create")
    assert refused.code == 1
    assert "column 'at'" in refused.err
    assert "fine-text" not in served.log.topics()


@pytest.mark.parametrize("ddl", ["id bigint", "id bigint, m map<string,int>"])
@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ('{"id":9223372036854775808}', "does not fit bigint"),
        ('{"id":' + "[" * 3000 + "]" * 3000 + "}", "nested deeper than 128 levels"),
        ('{"id":1,"z":' + '{"a":' * 3000 + "1" + "}" * 3000 + "}", "nested deeper than 128 levels"),
        ('{"id":1e400}', "does not fit bigint"),
        ('{"id":' + "9" * 5000 + "}", "record 2"),
        ("null", "not a JSON object: 'null'"),
        ('{"id":2} null', "not a JSON object"),
    ],
)
def test_unreadable_json_is_an_error_of_one_line(served, there, tmp_path, ddl, text, problem):
    name = f"hard-{len(ddl)}"
    if name not in served.log.topics():
        served.log.create_topic(name, schema=parse_schema(ddl))
    (tmp_path / "a.jsonl").write_text('{"id":1}\n' + text)
    refused = there("produce", name, "--file", str(tmp_path / "a.jsonl"))
    assert (refused.code, refused.out) == (1, "")
    summary, error = refused.err.splitlines()
    assert summary == f"0 records to {name}"
    assert error.startswith("error: record 2: ")
    assert problem in error
    assert len(error) < 300
    new = there("produce", "new", "--file", str(tmp_path / "a.jsonl"), "--create")
    assert ("new" in served.log.topics()) == (new.code == 0)  # a created topic accepts the file
    assert "Traceback" not in new.err
    if new.code == 0:
        served.log.delete_topic("new")


def test_brackets_within_a_string_do_not_count_as_nesting(served, there, tmp_path):
    served.log.create_topic("brackets", schema=parse_schema("s string"))
    text = "[{" * 1000 + '"\\ } null'
    (tmp_path / "a.jsonl").write_text(json.dumps({"s": text}))
    assert there("produce", "brackets", "--file", str(tmp_path / "a.jsonl")).code == 0
    assert served.log.read("brackets")["s"].to_pylist() == [text]


def test_file_that_starts_with_null_is_refused(there, tmp_path):
    (tmp_path / "a.jsonl").write_text("null")
    refused = there("produce", "null-alone", "--file", str(tmp_path / "a.jsonl"), "--create")
    assert refused.code == 1
    assert (
        refused.err
        == "error: record 1: not a JSON object: 'null' (Correct or remove the record.)\n"
    )


def test_all_half_floats_round_trip_through_json():
    from spark_stream.schema.fitting import Fitting
    from spark_stream.schema.json_rows import JsonBlocks
    from spark_stream.schema.texts import json_lines

    halves = pa.array(np.arange(65_536, dtype=np.uint16).view(np.float16))
    batch = pa.record_batch({"h": halves})
    block = "\n".join(json_lines(batch, utf8=False).to_pylist()).encode()
    found = Fitting(batch.schema, text=True).fit(JsonBlocks(batch.schema).parse(block, 1), 1)["h"]
    bits = [each.to_numpy(zero_copy_only=False).view(np.uint16) for each in (halves, found)]
    finite = pc.invert(pc.is_nan(halves)).to_numpy(zero_copy_only=False)
    assert (bits[0] == bits[1])[finite].all()
    assert pc.is_nan(found).equals(pc.is_nan(halves))


def test_topics_are_created_from_files_of_r_and_chart_libraries(served, there, tmp_path):
    (tmp_path / "a.csv").write_text('"","n","t"\n"1",-,"a"\n"2","NA",""\n"3",7,"b"\n')
    nulls = ("--null", "NA", "--null", "-")
    made = there("produce", "of-r", "--file", str(tmp_path / "a.csv"), "--create", *nulls)
    assert made.code == 0, made.err
    assert made.err.splitlines() == [
        "created topic of-r",
        "columns without a name in the header are named _c0, as in Spark",
        "3 records to of-r",
    ]
    rows = {"_c0": [1, 2, 3], "n": [None, None, 7], "t": ["a", "", "b"]}
    assert served.log.read("of-r").to_pydict() == rows

    (tmp_path / "a.json").write_text('[\n {"a": 1},\n {"a": 2}\n]\n')
    made = there("produce", "of-charts", "--file", str(tmp_path / "a.json"), "--create")
    assert made.code == 0, made.err
    assert served.log.read("of-charts")["a"].to_pylist() == [1, 2]
    piped = served.run("produce", "of-charts", "--format", "json", stdin='[{"a":3}, {"a":4}]')
    assert piped.code == 0, piped.err
    assert served.log.read("of-charts")["a"].to_pylist() == [1, 2, 3, 4]
