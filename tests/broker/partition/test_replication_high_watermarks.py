"""The high watermark for followers, in frames of entries or in a message after a short delay."""

from __future__ import annotations

from spark_stream.broker.replication.settings import HIGH_WATERMARK_LINGER_S
from spark_stream.wire.replication_messages import Acked, Frame, HighWatermarks
from tests.broker.clusters import around, make
from tests.broker.leader_streams import Follower, followed
from tests.broker.local_broker import LocalBroker, Surroundings
from tests.clocks import FakeClock
from tests.support import eventually, numbers

__all__ = ["around"]

LINGER_US = int(HIGH_WATERMARK_LINGER_S * 1e6)


def replicate_one(leader: LocalBroker, follower: Follower, number: int) -> None:
    partition = leader.partition("t")
    partition.append(numbers(number, 1))
    eventually(lambda: sum(isinstance(each, Frame) for each in follower.heard) == number + 1)
    follower.say(Acked(((0, number + 1),)))
    eventually(lambda: partition.bounds().high_watermark == number + 1)


def told(follower: Follower) -> list[int]:
    found = [each for each in follower.heard if isinstance(each, HighWatermarks)]
    return [entry for each in found for _, entry in each.entries]


def test_frames_carry_the_high_watermark_without_extra_messages(around: Surroundings):
    a, b = around.start("a"), around.start("b")
    make(a, "t", "ab")
    clock = FakeClock()
    with followed(a, b, 1, clock) as follower:
        for number in range(10):
            replicate_one(a, follower, number)
            clock.pass_us(LINGER_US * 2 // 3)
        assert told(follower) == []
        clock.pass_us(LINGER_US)
        eventually(lambda: told(follower) == [10])
