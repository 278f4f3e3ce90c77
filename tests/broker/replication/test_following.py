"""Who does the work of a followed partition: the thread that reads, while that is quick."""

from __future__ import annotations

import threading
from typing import cast

import pytest

from spark_stream.broker.replication.following import SLOW_S, Following, Workers
from spark_stream.broker.replication.partitions import FollowedPartition
from tests.clocks import FakeClock
from tests.support import eventually

MIB = 1 << 20


@pytest.mark.parametrize(
    ("took_s", "size", "by_another"),
    [
        (SLOW_S / 2, 0, False),
        (2 * SLOW_S, 0, True),
        (2 * SLOW_S, MIB, False),  # that is what a large append takes where others want the disk
        (10 * SLOW_S, MIB, True),
    ],
)
def test_work_that_took_too_long_for_its_size_is_another_threads_the_next_time(
    took_s, size, by_another
):
    clock = FakeClock()
    workers = Workers(threading.Condition(), clock)
    following = Following(cast(FollowedPartition, None))
    threads: list[int] = []

    def work() -> None:
        threads.append(threading.get_ident())
        clock.pass_us(int(took_s * 1e6))

    for number in (1, 2):
        assert workers.do("stream", following, work, size)
        eventually(lambda number=number: len(threads) == number and not following.is_busy)
    me = threading.get_ident()
    assert [each == me for each in threads] == [True, not by_another]
    workers.stop()
