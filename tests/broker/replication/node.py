"""A replicating process: ``python -m tests.broker.replication.node NAME DIRECTORY PARTITIONS``.

It stores its logs in the directory, leads the partitions of the topic of its name, and follows
those of its peers. It answers each line of input by one line of output:

``peer NAME ADDRESS COUNT``     follow that many partitions of a peer at this address
``append NUMBER SIZE COUNT``   append batches of a size in bytes, and wait for their replication
``load NUMBER SIZE COUNT``     append them without a wait
``latency NUMBER TIMES``       append small batches in sequence, and print the seconds of each
``await-sessions``             wait until all its partitions are followed
``digests``                    print the digests of its led partitions, then of its replicas
``stop``                       shut down
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path

from spark_stream.broker.replication.settings import ReplicationSettings
from spark_stream.cluster.partitions import PartitionId
from tests.broker.replication.nodes import Node
from tests.broker.replication.partitions import Copy, DiskLog, LeadPartition
from tests.support import eventually


def main() -> None:
    sys.setswitchinterval(0.0005)  # as a broker does
    name, directory, count = sys.argv[1], Path(sys.argv[2]), int(sys.argv[3])
    settings = ReplicationSettings(*(float(each) for each in sys.argv[4:6]))
    lead = {
        PartitionId(name, number): LeadPartition(log=DiskLog(directory / f"{name}-{number}"))
        for number in range(count)
    }
    copies: dict[PartitionId, Copy] = {}
    node = Node(name, lead, settings=settings)
    _say(node.address)
    for line in sys.stdin:
        word, *rest = line.split()
        if word == "peer":
            peer, address, numbers = rest
            node.addresses[peer] = address
            for number in range(int(numbers)):
                key = PartitionId(peer, number)
                if key not in copies:
                    copies[key] = Copy(key, log=DiskLog(directory / f"{peer}-{number}"))
                    node.fetchers.follow(peer, copies[key])
            _say("ok")
        elif word in ("append", "load"):
            number, size, times = (int(each) for each in rest)
            partition = lead[PartitionId(name, number)]
            end = partition.append(os.urandom(size), times)
            if word == "append":
                partition.wait_for(end, 60)
            _say("ok")
        elif word == "latency":
            number, times = (int(each) for each in rest)
            _say(json.dumps(_round_trips(lead[PartitionId(name, number)], times)))
        elif word == "await-sessions":
            eventually(lambda: all(each.sessions for each in lead.values()), 60)
            _say("ok")
        elif word == "digests":
            found = [each.log.digest() for each in (*lead.values(), *copies.values())]
            _say(json.dumps(found))
        elif word == "stop":
            node.stop()
            _say("stopped")
            return


def _round_trips(partition: LeadPartition, times: int) -> list[float]:
    took = []
    for _ in range(times):
        began = time.perf_counter()
        partition.wait_for(partition.append(b"x" * 100), 60)
        took.append(time.perf_counter() - began)
    return took


def _say(what: str) -> None:
    print(what, flush=True)


if __name__ == "__main__":
    main()
