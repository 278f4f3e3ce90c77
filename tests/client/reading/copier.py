"""A copy from one topic to another in plain Python, exactly once, also if it is killed.

python -m tests.client.reading.copier ADDRESS SOURCE TARGET
"""

from __future__ import annotations

import itertools
import sys

import isolog

ROWS_MAX = 7


def copy(address: str, source: str, target: str) -> None:
    """Copy until the records of ``source`` at the start are committed in ``target``."""
    with (
        isolog.connect(address) as log,
        log.producer(transactional_id=f"copy-{target}") as producer,
        log.consumer(source, name=f"copy-{target}", isolation="read_committed") as consumer,
    ):
        print("copying", flush=True)
        records = consumer.records(until="latest")
        while True:
            some = list(itertools.islice(records, ROWS_MAX))
            if not some:
                return
            with producer.transaction():
                for record in some:
                    producer.send(target, record.value, partition=record.partition)
                producer.commit_position(consumer)


if __name__ == "__main__":
    copy(*sys.argv[1:])
