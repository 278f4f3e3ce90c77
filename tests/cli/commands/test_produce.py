"""``isolog produce`` and ``consume``: lines, files, open pipes, and early ends."""

from __future__ import annotations

import json
import select
import shlex
import signal
import subprocess
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from spark_stream.sql.ddl import parse_schema
from tests.cli.conftest import COMMAND, TIMEOUT_S, run

SCHEMA = "id bigint, name string, at timestamp"
ROWS = [
    {"id": 1, "name": "a", "at": "2024-01-01T00:00:00Z"},
    {"id": 2, "name": 'b "x",', "at": None},
    {"id": 3, "name": None, "at": "2024-01-01T00:00:00.500000Z"},
]


def line_of(process: subprocess.Popen[bytes]) -> bytes:
    """Return the next line of its output, or raise an error without one."""
    assert process.stdout is not None
    ready, _, _ = select.select([process.stdout], [], [], TIMEOUT_S)
    assert ready, "nothing came"
    return process.stdout.readline()


def ended(process: subprocess.Popen[bytes]) -> tuple[int, str]:
    _, errors = process.communicate(timeout=TIMEOUT_S)
    return process.returncode, errors.decode()


def test_lines_are_produced_and_consumed_unchanged(served, call, monkeypatch):
    served.log.create_topic("lines", partitions=2)
    sent = served.run(
        "produce",
        "lines",
        "--key-separator",
        ":",
        "--partition",
        "1",
        stdin="k:v\n:no key\nk:\nk:last",
    )
    assert (sent.code, sent.out, sent.err) == (0, "", "4 records to lines\n")
    assert served.run("consume", "lines").out == "v\nno key\n\nlast\n"
    monkeypatch.setenv("ISOLOG_BOOTSTRAP", served.bootstrap)
    form = call("consume", "lines", "--format", r"{partition}/{offset}\t{key}", "--to", "2")
    assert form.out == "1/0\tk\n1/1\t\n"
    last = call("consume", "lines", "--from", "-2", "-n", "1", "--output", "json")
    record = json.loads(last.out)
    assert (record["offset"], record["value"], record["topic"]) == (2, "", "lines")
    assert call("consume", "lines", "--partition", "0").out == ""
    assert call("consume", "lines", "--from", "2999-01-01").out == ""


@pytest.mark.parametrize(
    ("first", "last", "problem"),
    [
        ("earliest", "earliest", "--to earliest: the range is empty"),
        ("9", "3", "ends (--to 3) before it starts (--from 9)"),
        ("-2", "-5", "ends (--to -5) before it starts (--from -2)"),
        ("2024-05-02", "2024-05-01T00:00:00Z", "before it starts"),
    ],
)
def test_ranges_that_end_before_they_start_are_refused(served, first, last, problem):
    refused = served.run("consume", "nowhere", "--from", first, "--to", last)
    assert (refused.code, refused.out) == (2, "")
    assert problem in " ".join(refused.err.split())


def test_unknown_partition_is_refused_before_input_is_read_or_a_topic_created(served):
    served.log.create_topic("two", partitions=2)
    refused = served.run("produce", "two", "--partition", "9", stdin="")
    assert refused.code == 1
    assert "--partition 9: topic 'two' has partitions 0 to 1" in refused.err
    refused = served.run("produce", "new", "--create", "--partition", "1", stdin="x\n")
    assert "topic 'new' has only partition 0" in refused.err
    assert "new" not in served.log.topics()


def files(folder: Path) -> list[Path]:
    """Write the same rows in every format."""
    rows = [{**row, "at": row["at"] or ""} for row in ROWS]
    lines = ["id,name,at", *(f"{r['id']},{quoted(r['name'])},{r['at']}" for r in rows)]
    (folder / "rows.csv").write_text("\n".join(lines) + "\n")
    (folder / "rows.jsonl").write_text("\n".join(json.dumps(row) for row in ROWS))
    table = pa.Table.from_pylist(
        ROWS, pa.schema([("id", pa.int32()), ("name", "string"), ("at", "string")])
    )
    moments = pa.compute.cast(table.column("at"), pa.timestamp("us", "UTC"))
    table = table.set_column(2, "at", moments)
    pq.write_table(table, folder / "rows.parquet")
    with pa.ipc.new_file(folder / "rows.arrow", table.schema) as writer:
        writer.write_table(table)
    return [folder / f"rows.{each}" for each in ("csv", "jsonl", "parquet", "arrow")]


def quoted(text: str | None) -> str:
    return "" if text is None else '"' + text.replace('"', '""') + '"'


def test_files_of_every_format_are_produced_into_a_typed_topic(served, call, monkeypatch, tmp_path):
    monkeypatch.setenv("ISOLOG_BOOTSTRAP", served.bootstrap)
    served.log.create_topic("typed", schema=parse_schema(SCHEMA))
    for file in files(tmp_path):
        sent = call("produce", "typed", "--file", str(file))
        assert (sent.code, sent.err) == (0, "3 records to typed\n")
    piped = served.run(
        "produce", "typed", "--format", "csv", stdin=(tmp_path / "rows.csv").read_text()
    )
    assert piped.err == "3 records to typed\n"
    out = call("consume", "typed", "--output", "json").out
    assert [json.loads(line) for line in out.splitlines()] == 5 * ROWS

    stream = served.start("consume", "typed", "--output", "arrow", "--to", "3")
    table = pa.ipc.open_stream(stream.stdout).read_all()
    assert ended(stream) == (0, "")
    assert table.schema.equals(parse_schema(SCHEMA))
    assert table.column("id").to_pylist() == [1, 2, 3]

    shown = call("consume", "typed", "-n", "1", "--metadata", "-o", "table").out
    assert [each.strip() for each in shown.splitlines()[0].split("│")] == [
        "id", "name", "at", "_topic", "_partition", "_offset", "_timestamp",
    ]  # fmt: skip
    chosen = call("consume", "typed", "-n", "2", "-o", "csv", "--columns", "_offset,id")
    assert chosen.out == '"_offset","id"\n0,1\n1,2\n'


def test_invalid_producer_level_is_refused_before_records_are_reported(served, call):
    served.log.create_topic("levels")
    refused = call(
        "produce", "levels", "--isolation", "read_replicated", "--bootstrap", served.bootstrap
    )
    assert refused.code == 2
    [error] = refused.err.splitlines()
    assert error.startswith("error: isolation takes read_uncommitted | read_committed, not ")


def test_values_that_do_not_fit_are_refused_with_their_column(served, call, tmp_path):
    schema = parse_schema(SCHEMA.replace("id bigint", "id bigint NOT NULL"))
    served.log.create_topic("strict", schema=schema)
    for name, text, problem in (
        ("a.csv", "id,name,at\n1,a,\nx,b,\n", "record 2: column 'id': 'x' does not fit bigint"),
        ("b.csv", "name,at\na,\n", "column 'id' (bigint) is missing"),
        ("c.jsonl", '{"id":1,"z":2}\n', "column 'z'"),
    ):
        (tmp_path / name).write_text(text)
        source = ("--file", str(tmp_path / name), "--bootstrap", served.bootstrap)
        refused = call("produce", "strict", *source)
        assert (refused.code, refused.out) == (1, "")
        summary, error = refused.err.splitlines()
        assert summary == "0 records to strict"
        assert error.startswith("error: ")
        assert problem in error


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (["produce", "usage", "--transactional-id", "a"], "--transactional"),
        (["produce", "usage"], "format of the input is unknown"),
        (["produce", "usage", "--format", "parquet"], "--file"),
        (["produce", "usage", "--format", "csv", "--key-separator", ":"], "--key-separator"),
        (["consume", "usage", "--output", "raw"], "raw"),
        (["consume", "usage", "--from", "noon"], "--from"),
        (["consume", "usage", "--from", "0001-01-01T00:00:00+14:00"], "--from"),
        (["consume", "usage", "--from", str(1 << 63)], str((1 << 63) - 1)),
        (["consume", "usage", "--isolation", "read_all"], "read_all"),
        (
            ["produce", "usage", "--format", "json", "--transactional", "--transactional-id", ""],
            "1 to 255 characters",
        ),
        (["consume", "usage", "--format", "{id"], "--format"),
    ],
)
def test_invalid_usage_is_refused(served, call, arguments, problem):
    if "usage" not in served.log.topics():
        served.log.create_topic("usage", schema=parse_schema("id bigint"))
    refused = call(*arguments, "--bootstrap", served.bootstrap)
    assert (refused.code, refused.out) == (2, "")
    assert refused.err.startswith("error: ")
    assert refused.err.count("\n") == 1
    assert problem in refused.err


def test_missing_topic_is_created_only_with_create(served, call, tmp_path):
    (tmp_path / "new.csv").write_text("n,at\n1,2024-01-01\nNA,\n")
    command = ("produce", "new", "--file", str(tmp_path / "new.csv"), "--null", "NA")
    command += ("--bootstrap", served.bootstrap)
    refused = call(*command)
    assert refused.code == 1
    assert "'new'" in refused.err
    assert "--create" in refused.err
    made = call(*command, "--create")
    assert made.code == 0, made.err
    assert served.log.describe("new").schema.names == ["n", "at"]
    assert served.log.read("new").column("n").to_pylist() == [1, None]


def test_typed_lines_are_sent_immediately_and_ctrl_c_ends_follow(served):
    served.log.create_topic("live")
    writer = served.start("produce", "live")
    reader = served.start("consume", "live", "--follow")
    assert writer.stdin is not None
    for text in (b"one\n", b"two\n"):
        writer.stdin.write(text)
        writer.stdin.flush()
        assert line_of(reader) == text
    assert ended(writer) == (0, "2 records to live\n")
    reader.send_signal(signal.SIGINT)
    assert ended(reader) == (0, "")


def test_follow_ends_at_a_future_offset(served):
    served.log.create_topic("coming")
    reader = served.start("consume", "coming", "--follow", "--to", "2", "--output", "csv")
    assert reader.stdout is not None
    with served.log.producer() as producer:
        for value in ("a", "b", "c"):
            producer.send("coming", value).result()
    assert len(reader.stdout.read().splitlines()) == 1 + 2
    assert ended(reader) == (0, "")


@pytest.mark.parametrize(
    ("columns", "options"), [(None, ()), ("number bigint", ("-o", "table")), ("number bigint", ())]
)
@pytest.mark.parametrize("is_terminal", [False, True])
def test_consume_prints_json_lines_to_a_pipe_and_a_table_to_a_terminal(
    served, call, monkeypatch, columns, options, is_terminal
):
    name = f"shape-{columns is None}-{len(options)}-{is_terminal}"
    served.log.create_topic(name, schema=columns)
    with served.log.producer() as producer:
        value = {"value": [b"7"]} if columns is None else {"number": [7]}
        producer.append(name, pa.record_batch(value))
    monkeypatch.setenv("ISOLOG_BOOTSTRAP", served.bootstrap)
    monkeypatch.setattr("sys.stdout.isatty", lambda: is_terminal)
    found = call("consume", name, *options)
    table = " number\n────────\n      7\n"
    if columns is None:
        assert found.out == "7\n"  # its values, one per line
    else:
        assert found.out == (table if options or is_terminal else '{"number":7}\n')


def test_columns_of_a_default_schema_topic_are_json_lines_in_a_pipe(served, call, monkeypatch):
    monkeypatch.setenv("ISOLOG_BOOTSTRAP", served.bootstrap)
    served.log.create_topic("chosen")
    with served.log.producer() as producer:
        producer.send("chosen", "v", key="k")
    assert call("consume", "chosen", "--columns", "key,value").out == '{"key":"k","value":"v"}\n'
    assert call("consume", "chosen", "--format", "{key}={value}").out == "k=v\n"


def test_head_ends_a_command_quietly(served):
    served.log.create_topic("long", schema="line string")
    with served.log.producer() as producer:
        producer.append("long", pa.record_batch({"line": ["." * 1000] * 2000}))
    command = shlex.join([*COMMAND, "consume", "long", "--bootstrap", served.bootstrap])
    done = subprocess.run(
        ["bash", "-c", f"set -o pipefail; {command} | head -1"],
        capture_output=True,
        timeout=TIMEOUT_S,
        text=True,
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == json.dumps({"line": "." * 1000}, separators=(",", ":")) + "\n"


@pytest.mark.quick("mode0-None", "mode1-value binary")
@pytest.mark.parametrize("columns", [None, "value binary"])
@pytest.mark.parametrize("mode", [[], ["--follow"]])
def test_a_closed_pipe_ends_quietly(served, mode, columns):
    name = "wide" + "-follow" * len(mode) + "-typed" * (columns is not None)
    served.log.create_topic(name, schema=columns)
    with served.log.producer() as producer:
        producer.append(name, pa.record_batch({"value": pa.array([b"." * 1000] * 2000)}))
    reader = served.start("consume", name, *mode)
    line_of(reader)
    reader.stdout.close()
    assert reader.wait(TIMEOUT_S) == 0
    assert reader.stderr.read() == b""
    reader.stdin.close()
    reader.stderr.close()


def test_commands_start_a_broker_for_a_directory(tmp_path):
    path = str(tmp_path / "log")
    try:
        assert run("topic", "create", "t", "--path", path).code == 0
        assert run("produce", "t", stdin="hello\n", ISOLOG_PATH=path).err == "1 record to t\n"
        assert run("consume", "t", "--path", path).out == "hello\n"
    finally:
        assert run("broker", "stop", "--dir", path).code == 0
