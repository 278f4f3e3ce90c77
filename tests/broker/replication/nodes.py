"""Brokers that do nothing but replicate: Flight servers with the real streams of replication."""

from __future__ import annotations

import threading
from typing import Self

import pyarrow.flight as fl

from spark_stream.broker.identity import Endpoint, Identity
from spark_stream.broker.replication.fetchers import Fetchers
from spark_stream.broker.replication.leading import Leading
from spark_stream.broker.replication.partitions import PartitionKey
from spark_stream.broker.replication.settings import ReplicationSettings
from spark_stream.broker.replication.watch import Watch
from spark_stream.broker.service import translated
from spark_stream.cluster.identity import ClusterSecret
from spark_stream.consistency.ids import BrokerId
from spark_stream.environment import SystemClock
from spark_stream.wire.addresses import location
from spark_stream.wire.replication_messages import BODY, OpenReplication
from tests.broker.replication.partitions import LeadPartition, LeadPartitions

START = "the only start"


def identity(name: str, cluster_id: str = "c") -> Identity:
    """The broker of this name; brokers of one cluster have one secret."""
    return Identity(cluster_id, BrokerId(name), START, ClusterSecret(cluster_id.encode()))


QUICK = ReplicationSettings(beat_s=0.1, death_s=1.0)


class Node:
    """Leads ``partitions``, and follows whomever it is told to; ends with the ``with`` block."""

    def __init__(
        self,
        name: str,
        partitions: dict[PartitionKey, LeadPartition] | None = None,
        *,
        settings: ReplicationSettings = QUICK,
        cluster_id: str = "c",
        listen: str = "127.0.0.1:0",
    ) -> None:
        clock = SystemClock()
        self.name = name
        self.partitions = partitions or {}
        self.addresses: dict[str, str] = {}
        me = identity(name, cluster_id)
        self.lead = LeadPartitions(self.partitions)
        self.watch = Watch(settings, clock)
        self.leading = Leading(me, self.lead, settings, clock, self.watch)
        self.fetchers = Fetchers(me, self._endpoint_of, settings, clock, self.watch)
        self._server = _Server(location(listen), self.leading)
        self.address = listen.replace(":0", f":{self._server.port}")
        self._serving = threading.Thread(target=self._server.serve, daemon=True)
        self._serving.start()

    def _endpoint_of(self, name: BrokerId) -> Endpoint | None:
        address = self.addresses.get(name)
        return None if address is None else Endpoint(address, START)

    def stop(self) -> None:
        self.fetchers.stop()
        self.leading.stop()
        self.watch.stop()
        self._server.shutdown()
        self._serving.join()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()


class _Server(fl.FlightServerBase):
    def __init__(self, bind: str, leading: Leading) -> None:
        self._leading = leading
        super().__init__(bind)

    def do_get(self, context, ticket):
        with translated("replication"):
            opened = OpenReplication.from_command(ticket.ticket)
            said = self._leading.open(context.peer(), opened)
            return fl.GeneratorStream(BODY, _translated(said))

    def do_put(self, context, descriptor, reader, writer):
        with translated("replication"):
            opened = OpenReplication.from_command(descriptor.command)
            self._leading.listen(opened, reader)


def _translated(said):
    with translated("replication"):
        yield from said
