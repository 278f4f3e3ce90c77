"""Ends streams of appends from both sides at once, again and again; a program of its own.

``python -m tests.client.writing.ending_streams ADDRESS SECONDS``: the broker ends each stream at
its first batch (its topic is another one by now), while its writer writes on and closes. It prints
how many streams there were; gRPC aborts the process if two threads touch the writing side of one.
"""

from __future__ import annotations

import faulthandler
import sys
import threading
import time

from msgspec import structs

from spark_stream.client.connecting.connection import Connection
from spark_stream.client.topics import TopicsClient
from spark_stream.client.writing.appending import AppendStream
from spark_stream.client.writing.batches import completed
from spark_stream.consistency.isolation import Isolation
from spark_stream.wire.messages import AppendTo, Envelope
from tests.support import values


def end_streams(address: str, until: float) -> int:
    connection = Connection(address)
    link = connection.link()
    topic = structs.replace(TopicsClient(connection).describe("t"), id="another")
    request = AppendTo(
        topic=topic.name, topic_id=topic.id, isolation=Isolation.READ_UNCOMMITTED, timeout_ms=5000
    )
    batch = completed(values("a"))
    envelope = Envelope(partition=0).to_bytes()
    streams = 0
    while time.monotonic() < until:
        ended = threading.Event()
        stream = AppendStream(
            link,
            link.client(5),
            topic,
            request,
            lambda *_: None,
            lambda *_, told=ended: told.set(),
        )
        stream.start()
        for _ in range(streams % 40):
            stream.write(batch, envelope)
        stream.close()
        assert ended.is_set()
        streams += 1
    return streams


def main() -> None:
    faulthandler.enable()
    address, until = sys.argv[1], time.monotonic() + float(sys.argv[2])
    total: list[int] = []
    threads = [
        threading.Thread(target=lambda: total.append(end_streams(address, until))) for _ in range(4)
    ]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    assert len(total) == len(threads)
    print(sum(total))


if __name__ == "__main__":
    main()
