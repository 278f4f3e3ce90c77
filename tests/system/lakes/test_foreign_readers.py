"""Tables of a worker at each version, as other programs read them.

The table has transactions, merges, a checkpoint of isolog, a new column, and an OPTIMIZE of another
program in between.
"""

from __future__ import annotations

import importlib.resources
import json
import os
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import Any

import polars
import pyarrow as pa
import pytest
from deltalake import DeltaTable

import isolog
from tests.conftest import ROOT
from tests.lake_worker.lake_tables import rows_of, table_of
from tests.support import BrokerProcess

ROUNDS = 14
TOPIC = "trades"
SCHEMA = "n int, name string, price decimal(7,2), day date, moment timestamp, ratio float"
Rows = list[dict[str, Any]]


@dataclass
class Tables:
    """The lake, with the rows of each version of its table as isolog's own actions have them."""

    root: Path
    versions: dict[int, Rows]
    optimized: int
    """The version that another program wrote."""

    @property
    def folder(self) -> str:
        return str(self.root / TOPIC)


def block(first: int, schema: pa.Schema) -> pa.Table:
    numbers = range(first, first + 5)
    columns: dict[str, list[Any]] = {
        "n": list(numbers),
        "name": [None if n % 5 == 0 else f"näme {n}" for n in numbers],
        "price": [Decimal(n) / 4 for n in numbers],
        "day": list(numbers),
        "moment": [n * 1_000_001 for n in numbers],
        "ratio": [n / 8 for n in numbers],
        "more": [[str(n)] * (n % 3) for n in numbers],
    }
    arrays = [pa.array(columns[field.name], field.type) for field in schema]
    return pa.Table.from_arrays(arrays, schema=schema)


@pytest.fixture(scope="module")
def tables(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Tables]:
    root = tmp_path_factory.mktemp("lake")
    with BrokerProcess(tmp_path_factory.mktemp("log")) as broker, broker.connect() as log:
        log.create_topic(TOPIC, partitions=2, schema=SCHEMA)
        log.create_lake("l", TOPIC, root)
        worker = isolog.LakeWorker(log, "l")
        optimized = 0
        with log.producer(transactional_id="writer") as producer:
            for number in range(ROUNDS):
                if number == 5:
                    log.alter_topic(TOPIC, schema=f"{SCHEMA}, more array<string>")
                if number == 9:
                    DeltaTable(str(root / TOPIC)).optimize.compact()
                    optimized = table_of(root, TOPIC).version
                schema = log.describe(TOPIC).schema
                producer.begin_transaction()
                for partition in range(2):
                    rows = block(1000 * partition + 5 * number, schema)
                    producer.append(TOPIC, rows, partition=partition)
                producer.flush()
                if number % 4 == 2:
                    producer.abort_transaction()
                else:
                    producer.commit_transaction()
                worker.run_once()
        last = table_of(root, TOPIC)
        versions = {at: plain(read) for at, read in each_version(root, last.version)}
        logged = log.read(TOPIC, isolation="read_committed", metadata=True).to_pylist()
        assert [row["n"] for row in versions[last.version]] == [row["n"] for row in logged]
        assert optimized > 0
        yield Tables(root, versions, optimized)


def each_version(root: Path, last: int) -> Iterator[tuple[int, pa.Table]]:
    for version in range(last + 1):
        if table_of(root, TOPIC, version).files:
            yield version, rows_of(root, TOPIC, version)


def plain(rows: pa.Table) -> Rows:
    """Return rows by partition and offset, without the differences between types of readers."""
    return sorted(
        ({name: comparable(each) for name, each in row.items()} for row in rows.to_pylist()),
        key=lambda row: (row["_partition"], row["_offset"]),
    )


def comparable(value: Any) -> Any:
    if hasattr(value, "timestamp"):
        return round(value.timestamp() * 1_000_000)
    return float(value) if isinstance(value, Decimal) else value


def by_deltalake(folder: str, version: int) -> pa.Table:
    return DeltaTable(folder, version=version).to_pyarrow_table()


def by_polars(folder: str, version: int) -> pa.Table:
    return polars.scan_delta(folder, version=version).collect().to_arrow()


def by_duckdb(folder: str, version: int) -> pa.Table:
    duckdb = pytest.importorskip("duckdb")
    package = pytest.importorskip("duckdb_extension_delta", reason="DuckDB's Delta extension")
    release = f"v{duckdb.__version__}"
    path = importlib.resources.files(package) / "extensions" / release / "delta.duckdb_extension"
    if not path.is_file():
        pytest.skip(f"the package has no extension for DuckDB {release}")
    with duckdb.connect() as database:
        database.execute(f"LOAD '{path}'; SET TimeZone = 'UTC'")
        scan = f"FROM delta_scan('{folder}', version := {version})"
        return database.sql(scan).to_arrow_table()


READERS = {"deltalake": by_deltalake, "polars": by_polars, "duckdb": by_duckdb}


def test_the_versions_have_merges_a_checkpoint_and_a_new_column(tables: Tables) -> None:
    log = tables.root / TOPIC / "_delta_log"
    assert list(log.glob("*.checkpoint.parquet"))
    texts = [path.read_text() for path in sorted(log.glob("*.json"))]
    merges = [n for n, text in enumerate(texts) if '"remove"' in text and n != tables.optimized]
    assert merges
    assert sum('"metaData"' in text for text in texts) == 2
    assert max(tables.versions) > tables.optimized


@pytest.mark.parametrize("reader", READERS)
def test_a_reader_returns_the_rows_of_each_version(tables: Tables, reader: str) -> None:
    read: Callable[[str, int], pa.Table] = READERS[reader]
    for version, rows in tables.versions.items():
        assert plain(read(tables.folder, version)) == rows, version


def test_each_version_is_complete_over_its_partitions(tables: Tables) -> None:
    """Transactions are written to both partitions with the same numbers, modulo 1,000."""
    for rows in tables.versions.values():
        parts = [[row["n"] % 1000 for row in rows if row["_partition"] == p] for p in range(2)]
        assert parts[0] == parts[1]


@pytest.mark.full  # it installs another PySpark, and downloads delta-spark
@pytest.mark.timeout(1200)
def test_delta_spark_returns_the_rows_of_each_version(tables: Tables) -> None:
    environment = subprocess.run(
        [ROOT / "scripts" / "ensure-pyspark", "4.2.1"], capture_output=True, text=True, check=True
    ).stdout.strip()
    done = subprocess.run(
        [
            f"{environment}/bin/python",
            Path(__file__).with_name("foreign_spark.py"),
            tables.folder,
            json.dumps(list(tables.versions)),
        ],
        capture_output=True,
        text=True,
        check=False,
        env=os.environ | {"PYSPARK_PYTHON": f"{environment}/bin/python"},
    )
    assert done.returncode == 0, done.stderr[-4000:]
    found = json.loads(done.stdout.splitlines()[-1])
    names = ["n", "name", "price", "ratio", "more", "_partition", "_offset"]
    for version, rows in tables.versions.items():
        expected = [{n: row[n] for n in names if row.get(n) is not None} for row in rows]
        seen = [{n: row[n] for n in names if row.get(n) is not None} for row in found[str(version)]]
        assert seen == expected, version
