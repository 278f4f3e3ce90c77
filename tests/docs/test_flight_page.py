"""docs/flight.md: its code runs without isolog, and its table of fields matches the code."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pyarrow as pa

import isolog
from spark_stream.wire.stream_messages import FetchRange
from tests.conftest import ROOT
from tests.flight_calls import SERVED, flight_address
from tests.support import BrokerProcess

PAGE = (ROOT / "docs" / "flight.md").read_text()

NO_ISOLOG = """
import sys

class Refuses:
    def find_spec(self, name, *rest):
        if name.partition(".")[0] in ("spark_stream", "pyspark_isolog"):
            raise ImportError(f"{name} must not be needed")

sys.meta_path.insert(0, Refuses())
"""


def test_examples_run_without_isolog(log_dir: Path, tmp_path: Path) -> None:
    script = tmp_path / "plain.py"
    examples = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    script.write_text(NO_ISOLOG + "\n".join(examples))
    with BrokerProcess(log_dir, conf=SERVED) as broker, isolog.connect(broker.address) as log:
        log.create_topic("greetings", partitions=2)
        log.create_topic("numbers", schema=pa.schema([("n", pa.int64())]))
        with log.producer() as producer:
            for number in range(10):
                producer.send("greetings", f"hello {number}", partition=number % 2)
        environment = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
        ran = subprocess.run(
            [sys.executable, str(script), flight_address(broker.address)],
            capture_output=True,
            text=True,
            timeout=60,
            cwd=tmp_path,
            env=environment,
        )
        assert ran.returncode == 0, ran.stderr
        assert ran.stdout.splitlines() == [
            "greetings 10 records in 2 partitions",
            "numbers 0 records in 1 partitions",
            "10 rows: ['key', 'value', 'headers', 'timestamp']",
            "offset 0 count 3",
            "{'n': [1, 2, 3], '_offset': [0, 1, 2]}"
            " {'kind': 'rows', 'base': 0, 'next': 3, 'lineage': [[0, 3]]}",
        ]
        assert log.read("numbers")["n"].to_pylist() == [1, 2, 3]


def column(heading: str) -> set[str]:
    """The names in the first column of the table under a heading."""
    table = PAGE.partition(heading)[2].partition("\n## ")[0]
    rows = [line.split("|")[1] for line in table.splitlines() if line.startswith("| `")]
    return {name for row in rows for name in re.findall(r"`([^`]+)`", row)}


def test_ticket_has_the_fields_of_the_page() -> None:
    assert column("## DoGet") == set(FetchRange.__struct_fields__)
