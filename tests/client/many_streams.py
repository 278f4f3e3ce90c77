"""Many streams to brokers that are killed and stopped: a program for a separate process.

``python -m tests.client.many_streams ADDRESSES TOPIC…``: until standard input ends, every topic has
a producer that appends numbers in order, and a consumer. At the end every append is acknowledged,
and each consumer has read each number once, in order. The program then prints the number of
appends. gRPC aborts a process whose threads misuse a stream, and then there is no output.
"""

from __future__ import annotations

import faulthandler
import itertools
import sys
import threading

import isolog
from tests.support import eventually, numbers

ROWS = 10
SETTLED_S = 60.0


class Stream:
    """A producer and a consumer of one topic."""

    def __init__(self, log: isolog.Log, topic: str, over: threading.Event) -> None:
        self._log = log
        self._topic = topic
        self._over = over
        self.appends = 0
        self.wrong = ""
        self._seen = 0
        self._consumer = log.consumer(topic)
        self.threads = [
            threading.Thread(target=self._guarded, args=(work,), name=f"{work.__name__}-{topic}")
            for work in (self._write, self._read)
        ]

    def _guarded(self, work) -> None:
        try:
            work()
        except BaseException as error:
            self.wrong = f"{self._topic}: {work.__name__}: {type(error).__name__}: {error}"
            self._consumer.close()

    def _write(self) -> None:
        with self._log.producer(timeout_ms=int(SETTLED_S * 1000)) as producer:
            futures = []
            for number in itertools.count():
                futures.append(producer.append(self._topic, numbers(number * ROWS, ROWS), 0))
                if self._over.wait(0.002):
                    break
        offsets = [each.result(0).offset for each in futures]
        assert offsets == list(range(0, ROWS * len(futures), ROWS))
        self.appends = len(futures)
        eventually(lambda: self._seen >= ROWS * self.appends, SETTLED_S)
        self._consumer.close()

    def _read(self) -> None:
        for batch in self._consumer.batches():
            found = batch.column("n").to_pylist()
            expected = list(range(self._seen, self._seen + len(found)))
            assert found == expected, f"at {self._seen}: {found[:3]}"
            self._seen += len(found)


def main() -> None:
    faulthandler.enable()
    addresses, *topics = sys.argv[1:]
    over = threading.Event()
    with isolog.connect(addresses, timeout=SETTLED_S) as log:
        streams = [Stream(log, topic, over) for topic in topics]
        threads = [thread for stream in streams for thread in stream.threads]
        for thread in threads:
            thread.start()
        sys.stdin.read()
        over.set()
        for thread in threads:
            thread.join(2 * SETTLED_S)
            assert not thread.is_alive(), thread.name
    wrong = [stream.wrong for stream in streams if stream.wrong]
    assert not wrong, wrong
    print(sum(stream.appends for stream in streams))


if __name__ == "__main__":
    main()
