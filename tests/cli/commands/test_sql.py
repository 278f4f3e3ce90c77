"""``isolog sql``: topics as tables, formats, isolation, errors."""

from __future__ import annotations

import io
import json
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import isolog
from spark_stream.client.reading import datasets
from tests.cli.conftest import TIMEOUT_S, Call, Served, run
from tests.lake.local_lake import LocalLake
from tests.support import eventually


@pytest.fixture
def here(served: Served, call: Call, monkeypatch: pytest.MonkeyPatch) -> Call:
    """Commands in this process with the address of the broker."""
    monkeypatch.setenv("ISOLOG_BOOTSTRAP", served.bootstrap)
    return call


ENDLESS = "SELECT count(*) FROM range(4000000) a, range(4000000) b WHERE a.range + b.range = 7"


@pytest.fixture(scope="module")
def orders(served: Served) -> str:
    """A topic of 40 orders in 2 partitions, a quarter of them in an aborted transaction."""
    name = "shop.of-orders"
    served.log.create_topic(name, partitions=2, schema="id bigint, name string, price double")
    with served.log.producer(transactional_id="orders") as producer:
        for number in range(4):
            producer.begin_transaction()
            ids = range(10 * number, 10 * number + 10)
            block = pa.table(
                {"id": list(ids), "name": [f"n{i % 3}" for i in ids], "price": [i / 2 for i in ids]}
            )
            producer.append(name, block, partition=number % 2)
            producer.flush()
            if number == 1:
                producer.abort_transaction()
            else:
                producer.commit_transaction()
    return name


def rows(result) -> list[dict]:
    assert (result.code, result.err) == (0, "")
    return [json.loads(line) for line in result.out.splitlines()]


def test_a_statement_groups_orders_and_joins_topics(here, orders):
    found = here(
        "sql",
        f'SELECT a.name, count(*) AS n, sum(b.id) AS ids FROM "{orders}" a JOIN "{orders}" b'
        " USING (id) GROUP BY ALL ORDER BY a.name",
    )
    ids = [*range(10), *range(20, 40)]
    expected = [
        {"name": f"n{k}", "n": len(own), "ids": sum(own)}
        for k in range(3)
        if (own := [i for i in ids if i % 3 == k])
    ]
    assert rows(found) == expected


@pytest.mark.parametrize(
    "condition",
    [
        "id > 25 and _partition = 1",
        "id > 25 or name = 'n1'",
        "name = 'n2' and id between 3 and 30 and price <> 4",
        "_offset >= 5 and _offset < 12 and id in (5, 6, 27, 38)",
        "name = 'x) and (y'",
        "id is null",
    ],
)
def test_filters_select_the_same_rows_as_in_python(here, orders, served, condition):
    whole = served.log.read(orders, isolation="read_committed", metadata=True).to_pylist()
    python = {
        "id > 25 and _partition = 1": lambda r: r["id"] > 25 and r["_partition"] == 1,
        "id > 25 or name = 'n1'": lambda r: r["id"] > 25 or r["name"] == "n1",
        "name = 'n2' and id between 3 and 30 and price <> 4": lambda r: (
            r["name"] == "n2" and 3 <= r["id"] <= 30 and r["price"] != 4
        ),
        "_offset >= 5 and _offset < 12 and id in (5, 6, 27, 38)": lambda r: (
            5 <= r["_offset"] < 12 and r["id"] in (5, 6, 27, 38)
        ),
    }.get(condition, lambda _: False)
    found = rows(here("sql", f'SELECT id FROM "{orders}" WHERE {condition} ORDER BY id'))
    assert found == [{"id": each["id"]} for each in whole if python(each)]


def test_leaders_get_the_columns_and_simple_filters(here, orders, monkeypatch):
    asked = []
    of = datasets.View.of

    def seen(topic, stored, columns, **options):
        asked.append((columns, options["filter"]))
        return of(topic, stored, columns, **options)

    monkeypatch.setattr(datasets.View, "of", seen)
    here("sql", f"""SELECT id FROM "{orders}" WHERE name = 'n1' AND _offset > 3 AND price < 9""")
    assert asked == [(["id", "name", "price", "_offset"], "`name` = 'n1' and `_offset` > 3")]


def test_floating_point_filters_are_those_of_duckdb(here, served):
    """It sorts NaN above all numbers, and finds -0.0 as 0."""
    numbers = [1.5, float("nan"), None, -0.0, float("inf"), -3.0]
    table = pa.table(
        {
            "n": pa.array(range(6), pa.int64()),
            "f": pa.array(numbers, pa.float64()),
            "s": [{"x": each} for each in numbers],
        }
    )
    served.log.create_topic("floating", schema=table.schema)
    with served.log.producer() as producer:
        producer.append("floating", table, partition=0).result(60)
    for condition, found in (
        ("f > 0", [0, 1, 4]),
        ("f IN (0, 7)", [3]),
        ("f <= 'nan'", [0, 1, 3, 4, 5]),
        ("f >= 'inf' AND n < 4", [1]),
        ("s.x > 0", [0, 1, 4]),
        ("f IS NULL", [2]),
    ):
        asked = here("sql", f"SELECT n FROM floating WHERE {condition} ORDER BY n", "-o", "json")
        assert [each["n"] for each in rows(asked)] == found, condition
    served.log.delete_topic("floating")


def test_topics_that_differ_only_in_case_are_not_in_one_statement(here, served):
    for name, values in (("cases", [1, 2, 3]), ("Cases", [9])):
        served.log.create_topic(name, schema="n bigint")
        with served.log.producer() as producer:
            producer.append(name, pa.table({"n": values}), partition=0).result(60)
    assert rows(here("sql", 'SELECT max(n) AS m FROM "Cases"', "-o", "json")) == [{"m": 9}]
    assert rows(here("sql", "SELECT max(n) AS m FROM cases", "-o", "json")) == [{"m": 3}]
    refused = here("sql", 'SELECT * FROM cases WHERE n IN (SELECT n FROM "Cases")')
    assert refused.code == 2
    assert "differ only in case: Cases, cases" in refused.err
    for name in ("cases", "Cases"):
        served.log.delete_topic(name)


@pytest.mark.parametrize("isolation", ["read_uncommitted", "read_committed", "read_atomic"])
def test_isolation_levels(here, orders, isolation):
    found = here("sql", f'SELECT count(*) AS n FROM "{orders}"', "--isolation", isolation)
    assert rows(found) == [{"n": 40 if isolation == "read_uncommitted" else 30}]


def test_topics_of_a_statement_are_read_at_one_cut(here, served, monkeypatch):
    """A transaction writes to both topics before each scan. The counts of both stay equal."""
    for name in ("left", "right"):
        served.log.create_topic(name, schema="n bigint")
    producer = served.log.producer(transactional_id="both")

    def write() -> None:
        producer.begin_transaction()
        for name in ("left", "right"):
            producer.append(name, pa.table({"n": [1]}))
        producer.commit_transaction()

    write()
    read = datasets.read_partition

    def read_later(*given):
        write()
        yield from read(*given)

    monkeypatch.setattr(datasets, "read_partition", read_later)
    statement = 'SELECT (SELECT count(*) FROM "left") AS l, (SELECT count(*) FROM "right") AS r'
    with producer:
        for isolation in ("read_committed", "read_atomic"):
            (found,) = rows(here("sql", statement, "--isolation", isolation))
            assert found["l"] == found["r"]


def test_removed_records_are_read_from_the_table_of_a_lake(here, served, tmp_path):
    served.log.create_topic("old", partitions=2, schema="n bigint, t string")
    with served.log.producer() as producer:
        for number in range(2):
            block = pa.table({"n": range(300), "t": [str(n) for n in range(300)]})
            producer.append("old", block, partition=number)
    LocalLake(served.log, ["old"], tmp_path).run()
    statement = "SELECT * FROM old WHERE n % 7 = 1 AND n > 20 ORDER BY _partition, _offset"
    before = here("sql", statement)
    assert len(rows(before)) == 2 * 40
    served.log.trim("old", {0: 200, 1: 300})
    assert here("sql", statement).out == before.out


def test_formats(here, orders):
    statement = f'SELECT id, name FROM "{orders}" WHERE id < 2 ORDER BY id'
    assert here("sql", statement, "-o", "csv").out == '"id","name"\n0,"n0"\n1,"n1"\n'
    table = here("sql", statement, "-o", "table").out
    assert [line.split() for line in table.splitlines()[::2]] == [
        ["id", "│", "name"],
        ["0", "│", "n0"],
    ]
    assert "NULL" in here("sql", "SELECT NULL AS n", "-o", "table").out
    assert here("sql", f'FROM "{orders}" WHERE id < 0', "-o", "csv").out.count("\n") == 1


def test_parquet_and_arrow_go_to_a_pipe(served, orders):
    statement = f'SELECT id, 1::HUGEINT AS h FROM "{orders}" ORDER BY id'
    for shape in ("parquet", "arrow"):
        done = served.start("sql", statement, "-o", shape)
        out, err = done.communicate(timeout=60)
        assert (done.returncode, err) == (0, b"")
        if shape == "parquet":
            found = pq.read_table(io.BytesIO(out))
        else:
            found = pa.ipc.open_stream(out).read_all()
        assert found["id"].to_pylist() == [*range(10), *range(20, 40)]


def test_all_types_of_duckdb_are_printed(here):
    statement = (
        "SELECT [1, 2] AS a, {'b': INTERVAL 1 DAY} AS b, union_value(k := 1) AS c, DATE"
        " '2024-02-29' AS d, 'x'::ENUM ('x') AS e,"
        " 170141183460469231731687303715884105727::UHUGEINT AS f,"
        " TIME '10:00:00' AS g, TIMESTAMPTZ '2024-02-29 10:00:00+01' AS h, NULL AS i, 1 AS a,"
        " array_value(1, 2) AS j, '101'::BIT AS k, MAP {'x': 1.50} AS l"
    )
    (found,) = rows(here("sql", statement))
    assert found["a"] == [1, 2]
    assert found["b"] == "{'b': 1 day}"
    assert found["c"] == "1"
    assert found["f"] == "170141183460469231731687303715884105727"
    assert found["h"] == "2024-02-29T09:00:00Z"
    assert found["a_1"] == 1
    assert found["k"] == "101"
    for shape in ("csv", "table"):
        assert here("sql", statement, "-o", shape).code == 0


def test_records_with_kafkas_columns_are_texts(here, served):
    served.log.create_topic("letters")
    with served.log.producer() as producer:
        producer.send("letters", "a", key="k").result(60)
    statement = 'SELECT key, value, "offset" FROM letters WHERE "offset" >= 0'
    assert rows(here("sql", statement)) == [{"key": "k", "value": "a", "offset": 0}]
    assert rows(here("sql", "SELECT decode(value) AS v FROM Letters")) == [{"v": "a"}]


@pytest.mark.parametrize(
    ("statement", "code", "message"),
    [
        ("SELECT * FROM lettres", 1, "there is no topic 'lettres'"),
        ("FROM 'none.parquet'", 2, "there is no file 'none.parquet', and no topic of this name"),
        ("FROM read_csv('none.csv')", 2, "there is no file 'none.csv'"),
        ("SELECT * FROM shop.of-orders LIMIT 1", 2, 'SELECT * FROM "shop.of-orders"'),
        ("SELECT * FROM shop.orders", 2, "Put double quotes around a name"),
        ("SELECT * FROM order", 2, 'SELECT * FROM "order"'),
        ("SELECT * FROM shop.x.orders", 2, "Put double quotes around a name"),
        ("SELECT * FROM shop.of-orders", 2, "Put double quotes around a name"),
        ("SELECT nope FROM {orders}", 2, 'Referenced column "nope" not found'),
        ("SELECT * FRO {orders}", 2, "syntax error at or near"),
        ("SELECT name::INT FROM {orders}", 1, "Could not convert string 'n0' to INT32"),
        ("", 2, "the statement is empty"),
        (" -- nothing", 2, "SHOW TABLES"),
        ("CREATE TABLE a AS FROM {orders}", 2, "the statement is a CREATE"),
        ("COPY {orders} TO 'x.csv'", 2, "the statement is a COPY"),
        ("SET threads = 1", 2, "the statement is a SET"),
        ("SELECT served", 2, "served"),
        ("CREATE TABLE a AS SELECT 1; SELECT * FROM {orders}, a", 2, "runs one statement"),
    ],
)
def test_errors_are_one_line(here, served, orders, statement, code, message):
    if "order" not in served.log.topics():
        served.log.create_topic("order")
    found = here("sql", statement.replace("{orders}", f'"{orders}"'))
    assert (found.code, found.out) == (code, "")
    assert message in found.err
    assert found.err.count("\n") == 1


@pytest.mark.parametrize(
    "statement",
    ["SELECT nope FROM {orders}", "SELECT * FRO {orders}", "SELECT", "SELECT 1 FROM range('a-b')"],
)
def test_only_errors_about_names_advise_quotes(here, orders, statement):
    assert "quotes" not in here("sql", statement.replace("{orders}", f'"{orders}"')).err


@pytest.mark.parametrize("statement", ["SHOW TABLES", "show all tables;", "DESCRIBE", "SHOW"])
def test_tables_are_the_topics(here, served, orders, statement):
    found = rows(here("sql", statement))
    assert [each["name"] for each in found] == sorted(served.log.topics())
    assert {"name": orders} in found


def test_a_topic_is_described(here, orders):
    found = rows(here("sql", f'DESCRIBE "{orders}"'))
    shown = {each["column_name"]: each["column_type"] for each in found}
    assert shown["price"] == "DOUBLE"
    assert "_offset" in shown
    found = rows(here("sql", f'SUMMARIZE SELECT id FROM "{orders}"'))
    assert [each["count"] for each in found] == [30]


def test_a_pivot_and_an_explain_are_queries(here, orders):
    (found,) = rows(here("sql", f'PIVOT (SELECT name, id FROM "{orders}") ON name USING count(id)'))
    assert sum(found.values()) == 30
    assert here("sql", f'EXPLAIN FROM "{orders}"').code == 0


def test_an_unknown_topic_has_the_nearest_name(here, orders):
    assert "(is 'shop.of-orders' meant?)" in here("sql", 'FROM "shop.orders"').err


def test_a_failed_read_is_the_error_of_the_log(here, served, orders, monkeypatch):
    def fail(*_):
        raise isolog.errors.BrokerUnavailable("the broker is away")
        yield

    monkeypatch.setattr(datasets, "read_partition", fail)
    found = here("sql", f'FROM "{orders}"')
    assert (found.code, found.err.count("\n")) == (1, 1)
    assert found.err.startswith("error: the broker is away")


def test_without_duckdb_the_error_names_the_extra(here, monkeypatch):
    monkeypatch.setitem(sys.modules, "duckdb", None)
    found = here("sql", "SELECT 1")
    assert found.code == 2
    assert "isolog sql needs the package duckdb" in found.err
    assert "[sql]" in found.err


def test_ctrl_c_ends_a_statement_that_computes(served, orders):
    """It takes more processor time than the start of the command."""
    with served.start("sql", ENDLESS) as running:
        used = psutil.Process(running.pid).cpu_times
        eventually(lambda: used().user > 5, timeout_s=120)
        running.send_signal(signal.SIGINT)
        assert running.wait(30) == -signal.SIGINT


def test_a_long_statement_prints_no_progress_among_its_rows(served):
    """By default DuckDB prints it after two seconds in a program without a file."""
    program = "import sys; from spark_stream.cli.app import execute; execute(sys.argv[1:])"
    statement = "SELECT current_setting('enable_progress_bar') AS bar"
    done = subprocess.run(
        [sys.executable, "-c", program, "sql", statement, "--bootstrap", served.bootstrap],
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
    )
    assert (done.stdout, done.stderr) == ('{"bar":false}\n', "")


def test_a_failed_test_kills_its_statement(served):
    with pytest.raises(TimeoutError), served.start("sql", ENDLESS) as running:
        raise TimeoutError
    assert running.returncode == -signal.SIGKILL


def test_a_directory(tmp_path: Path):
    log = tmp_path / "log"
    run("topic", "create", "t", "--path", str(log), "--schema", "n bigint")
    run("produce", "t", "--format", "json", "--path", str(log), stdin='{"n": 1}\n' * 10)
    found = run("sql", "SELECT sum(n) AS s FROM t", "--path", str(log))
    assert (found.code, found.out, found.err) == (0, '{"s":10}\n', "")
    missing = run("sql", "SELECT 1", "--path", str(tmp_path / "none"))
    assert missing.code == 1
    assert not (tmp_path / "none").exists()
