"""What is left of a producer that is dropped without ``close()``."""

from __future__ import annotations

import gc
import threading

import pytest

from tests.support import eventually


@pytest.mark.parametrize("transactional", [False, True])
def test_a_producer_that_is_dropped_sends_what_it_took_and_leaves_no_thread(
    log, topic, transactional
):
    log.create_topic(topic)
    for number in range(5):
        producer = log.producer(transactional_id=f"{topic}-{number}" if transactional else None)
        if transactional:
            producer.begin_transaction()
        producer.send(topic, b"1")
    del producer
    gc.collect()
    eventually(lambda: not writing())
    assert len(log.read(topic)) == 5


def writing() -> list[str]:
    """The names of the threads that producers have."""
    kinds = tuple(
        f"isolog-{kind}" for kind in ("deadlines", "sender", "serving", "append", "dropped")
    )
    return [each.name for each in threading.enumerate() if each.name.startswith(kinds)]
