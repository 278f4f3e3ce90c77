"""A process that replicates: ``python -m tests.broker.replication.node NAME``; told by its input.

It leads the partitions of the topic of its name, and follows those of its peer. Lines in, each
answered by one line out:

``peer NAME ADDRESS NUMBERS``  follow that peer's partitions; a number is ``first-last``
``append NUMBER SIZE COUNT``   append batches of so many bytes, and wait until they are replicated
``load NUMBER SIZE COUNT``     append them and do not wait
``ends``                       the ends of all copies
``digests``                    of what it leads, then of its copies
``stop``                       end in order
"""

from __future__ import annotations

import json
import os
import sys

from spark_stream.broker.replication.partitions import PartitionKey
from spark_stream.broker.replication.settings import ReplicationSettings
from tests.broker.replication.nodes import Node
from tests.broker.replication.partitions import Copy, LeadPartition


def main() -> None:
    name, count = sys.argv[1], int(sys.argv[2])
    settings = ReplicationSettings(*(float(each) for each in sys.argv[3:5]))
    lead = {PartitionKey(name, number): LeadPartition() for number in range(count)}
    copies: dict[PartitionKey, Copy] = {}
    node = Node(name, lead, settings=settings)
    _say(node.address)
    for line in sys.stdin:
        word, *rest = line.split()
        if word == "peer":
            peer, address, numbers = rest
            node.addresses[peer] = address
            for number in range(int(numbers)):
                copy = Copy(PartitionKey(peer, number))
                if copies.setdefault(copy.key, copy) is copy:
                    node.fetchers.follow(peer, copy)
            _say("ok")
        elif word in ("append", "load"):
            number, size, times = (int(each) for each in rest)
            partition = lead[PartitionKey(name, number)]
            end = partition.append(os.urandom(size), times)
            if word == "append":
                partition.wait_for(end, 60)
            _say("ok")
        elif word == "ends":
            _say(json.dumps([copy.log.end for copy in copies.values()]))
        elif word == "digests":
            found = [each.log.digest() for each in (*lead.values(), *copies.values())]
            _say(json.dumps(found))
        elif word == "stop":
            node.stop()
            _say("stopped")
            return


def _say(what: str) -> None:
    print(what, flush=True)


if __name__ == "__main__":
    main()
