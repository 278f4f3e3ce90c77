"""A broker that ends in order hands over what it leads, so that nobody has to notice its end.

Order of steps: nothing is appended any more; the followers get what they lack, for a while; then
the records name other leaders, one compare-and-set each. What a follower lacked by then is cut off
later: nothing of it was acknowledged as replicated. A partition that nobody else can lead stays.
"""

from __future__ import annotations

from typing import Final

from spark_stream.broker.host import Host
from spark_stream.broker.members import Members
from spark_stream.cluster.partitions import PartitionId
from spark_stream.consistency import election
from spark_stream.consistency.partition_record import Member
from spark_stream.scripts.moving import change_records
from spark_stream.scripts.steps import Pause, Script

_PAUSES: Final = 100
_PAUSE_S: Final = 0.01


def handing_over(host: Host, members: Members) -> Script[int]:
    """Hands over all that the broker leads; how many partitions that were."""
    generation = host.generation
    if generation is None:
        return 0
    me, alive = Member(host.broker_id, generation), members.alive()
    led = [
        partition
        for hosted in host.topics()
        for partition in hosted.led()
        if partition.has_followers
    ]
    for partition in led:
        partition.begin_hand_over()
    for _ in range(_PAUSES):
        if all(each.is_all_replicated() for each in led):
            break
        yield Pause(_PAUSE_S)
    outcomes = yield from change_records(
        [PartitionId(each.topic_id, each.number) for each in led],
        host.view_of,
        lambda _, record: election.resign(record, me, alive),
    )
    return sum(not isinstance(each, election.Unchanged) for each in outcomes.values())
