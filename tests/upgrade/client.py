"""Write, commit a transaction, and read everything, with the release that is on the path.

``python client.py BOOTSTRAP NAME`` prints the path of its isolog, and the values that it read.
"""

from __future__ import annotations

import json
import sys

import spark_stream as isolog

TOPIC = "versions"


def values_of(name: str) -> set[str]:
    """The values that a client of this name writes and commits."""
    return {f"{name} alone", f"{name} first", f"{name} second"}


def main(bootstrap: str, name: str) -> None:
    alone, first, second = sorted(values_of(name))
    with isolog.connect(bootstrap, timeout=60) as log:
        with log.producer(isolation="read_committed") as producer:
            producer.send(TOPIC, alone.encode()).result(60)
        with log.producer(transactional_id=name) as producer:
            producer.begin_transaction()
            producer.send(TOPIC, b"never committed", partition=0)
            producer.abort_transaction()
            producer.begin_transaction()
            for partition, value in enumerate((first, second)):
                producer.send(TOPIC, value.encode(), partition=partition)
            producer.commit_transaction()
        log.create_topic(f"of-{name.replace(' ', '-')}")
        log.delete_topic(f"of-{name.replace(' ', '-')}")
        assert log.describe(TOPIC).partitions
        assert len(log.cluster().brokers) == 3
        with log.consumer(TOPIC, isolation="read_committed") as consumer:
            consumed = [each.value.decode() for each in consumer.records("latest")]
        read = log.read(TOPIC, isolation="read_atomic")["value"].to_pylist()
    print(json.dumps([isolog.__file__, consumed, [each.decode() for each in read]]))


if __name__ == "__main__":
    main(*sys.argv[1:])
