"""A process that writes Parquet with a share of a core: the load of a worker without isolog.

``python -m bench.parquet_writer PATH SHARE`` runs until it is ended.
"""

from __future__ import annotations

import sys
import time

import pyarrow as pa
import pyarrow.parquet as pq

from bench.records import batch_of

ROWS = 20_000
BATCHES = 13


def main(path: str, share: float) -> None:
    """Write the same file again and again, and sleep in between."""
    table = pa.Table.from_batches([batch_of("typed", ROWS)] * BATCHES)
    while True:
        began, before = time.monotonic(), time.process_time()
        pq.write_table(table, path, compression="zstd", compression_level=1)
        whole_s = (time.process_time() - before) / share
        time.sleep(max(0.0, whole_s - (time.monotonic() - began)))


if __name__ == "__main__":
    main(sys.argv[1], float(sys.argv[2]))
