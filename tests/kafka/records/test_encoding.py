"""Record batches of Kafka are converted without pandas, which takes 38 MiB of memory."""

from __future__ import annotations

import subprocess
import sys

from tests.kafka.kafka_batches import by_kafka

PROGRAM = """
import sys
from spark_stream.kafka import gateway
from spark_stream.kafka.records.batches import read_batches
from spark_stream.kafka.records.decoding import decode_records
from spark_stream.kafka.records.encoding import encode_batch
import numpy as np, pyarrow as pa

for data in sys.argv[1:]:
    for batch in read_batches(pa.py_buffer(bytes.fromhex(data)), 1 << 20):
        rows = decode_records(batch)
        encode_batch(rows, np.arange(len(rows)))
print("pandas" in sys.modules)
"""


def test_records_are_converted_without_pandas():
    given = [
        by_kafka([(b"k", b"v", [], 5)] * 300),
        by_kafka([(None, b"v", [("h", b"1"), ("h", None)], 5), (b"k", None, [], 6)]),
    ]
    found = subprocess.run(
        [sys.executable, "-c", PROGRAM, *(each.hex() for each in given)],
        capture_output=True,
        text=True,
        check=True,
    )
    assert found.stdout == "False\n"
