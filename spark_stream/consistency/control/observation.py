"""The brokers that are alive and the partitions that have a leader, by an observer's evidence.

An election needs proof that a leader has stopped, so it counts a broker as alive for as long as its
lease may last (``cluster.stores.leases``). A view for an operator needs the opposite, evidence of
life: while the metadata store takes no writes, the lease of a dead broker never ends for an
observer that cannot renew its own lease either.

A broker is alive if the observer saw it renew its lease within the lease's duration, or if it
answered the observer's last probe. The observer probes only while it cannot renew its own lease.
A broker that renews its lease leads its partitions on record. One that only answers may have
stopped with its lease, so it leads what its answer lists (``consistency.replication.promises``).
"""

from __future__ import annotations

from collections.abc import Mapping

from msgspec import Struct

from spark_stream.consistency.ids import BrokerId

Led = Mapping[str, frozenset[int]]
"""The partitions that a broker leads at a moment, as numbers by topic id."""


class Evidence(Struct, frozen=True):
    """An observer's evidence of one broker.

    ``renews``: whether its lease was seen to change within the lease's duration. ``led``: its
    answer to the last probe, or None without an answer.
    """

    renews: bool
    led: Led | None = None

    @property
    def is_alive(self) -> bool:
        """Whether the broker counts as alive."""
        return self.renews or self.led is not None


def is_led(
    leader: BrokerId | None, topic_id: str, number: int, seen: Mapping[BrokerId, Evidence]
) -> bool:
    """Return whether the leader on record leads the partition. ``seen``: evidence by broker."""
    evidence = None if leader is None else seen.get(leader)
    if evidence is None or evidence.renews:
        return evidence is not None
    return number in (evidence.led or {}).get(topic_id, ())
