"""Brokers that do nothing but replicate: servers with the real streams of replication."""

from __future__ import annotations

import threading
from typing import Self

from spark_stream.broker.identity import Endpoint, Identity
from spark_stream.broker.listening import listening_socket, port_of
from spark_stream.broker.replication.fetchers import Fetchers
from spark_stream.broker.replication.leading import Leading
from spark_stream.broker.replication.partitions import PartitionKey
from spark_stream.broker.replication.settings import ReplicationSettings
from spark_stream.cluster.identity import ClusterSecret
from spark_stream.consistency.ids import BrokerId
from spark_stream.environment import SystemClock
from spark_stream.errors import IsologError
from spark_stream.protocol import StreamOpened, StreamOver
from spark_stream.transport.failures import TRANSPORT_ERRORS, error_bytes
from spark_stream.transport.loop import Loop
from spark_stream.transport.server import Door, Serve, Server
from spark_stream.transport.streams import BlockingStream, Stream
from spark_stream.wire.replication_messages import OpenReplication
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
        self.leading = Leading(me, self.lead, settings, clock)
        self.fetchers = Fetchers(me, self._endpoint_of, settings, clock)
        bound = listening_socket(listen)
        self.address = listen.replace(":0", f":{port_of(bound)}")
        self._loop = Loop(f"node-{name}")
        self._server = Server(self._loop)
        self._server.open(Door(bound, _served(self.leading)))

    def _endpoint_of(self, name: BrokerId) -> Endpoint | None:
        address = self.addresses.get(name)
        return None if address is None else Endpoint(address, START)

    def stop(self) -> None:
        self.fetchers.stop()
        self.leading.stop()
        self._server.stop("the test is over", 0.1)
        self._loop.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()


def _served(leading: Leading) -> Serve:
    """Serve replication, each stream on a thread of its own."""

    def run(opened: StreamOpened, stream: BlockingStream) -> None:
        try:
            leading.serve(OpenReplication.from_bytes(bytes(opened.body)), stream)
        except IsologError as error:
            stream.fail(error_bytes(error))
        except (*TRANSPORT_ERRORS, StreamOver):
            pass

    def serve(opened: StreamOpened, stream: Stream) -> None:
        threading.Thread(target=run, args=(opened, BlockingStream(stream)), daemon=True).start()

    return serve
