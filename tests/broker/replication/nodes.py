"""Nodes with the real replication streams, but without a metadata store and clients.

The test supplies the partitions at both ends.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Self

from isolog.errors import IsologError
from spark_stream.broker.node.identity import BrokerIdentity, Endpoint
from spark_stream.broker.replication.fetchers import Fetchers
from spark_stream.broker.replication.interfaces import Background, ReplicationContext
from spark_stream.broker.replication.leader_stream import LeaderStreams
from spark_stream.broker.replication.lines import Lines
from spark_stream.broker.replication.promises import Promises
from spark_stream.broker.replication.settings import ReplicationSettings
from spark_stream.broker.serving.pool import Pool
from spark_stream.cluster.brokers import ClusterSecret
from spark_stream.cluster.partitions import PartitionId
from spark_stream.consistency.ids import BrokerId
from spark_stream.environment import SystemClock
from spark_stream.protocol import StreamOpened
from spark_stream.storage.disk.directory import PromiseFile
from spark_stream.transport.listening import listening_socket, port_of
from spark_stream.transport.loop import Loop
from spark_stream.transport.server import Door, Serve, Server
from spark_stream.transport.streams import Stream, error_bytes
from spark_stream.wire.replication_messages import OpenReplication
from tests.broker.replication.partitions import LeadPartition, LeadPartitions

START = "the only start"


def identity(name: str, cluster_id: str = "c") -> BrokerIdentity:
    """Return the identity of a broker. The brokers of one cluster share a secret."""
    return BrokerIdentity(cluster_id, BrokerId(name), START, ClusterSecret(cluster_id.encode()))


QUICK = ReplicationSettings(beat_s=0.1, death_s=1.0)


class Node:
    """A node that leads ``partitions`` and follows other nodes, in a ``with`` block."""

    def __init__(
        self,
        name: str,
        partitions: dict[PartitionId, LeadPartition] | None = None,
        *,
        settings: ReplicationSettings = QUICK,
        cluster_id: str = "c",
        listen: str = "127.0.0.1:0",
        promise_s: Callable[[], float | None] = lambda: None,
    ) -> None:
        """``promise_s``: the duration of the promises that it requests and makes, or None."""
        clock = SystemClock()
        self.name = name
        self.partitions = partitions or {}
        self.addresses: dict[str, str] = {}
        me = identity(name, cluster_id)
        self.lead = LeadPartitions(self.partitions)
        self._loop = Loop(f"node-{name}")
        self._pool = Pool(self._loop)
        background = Background(self._pool.submit, self._pool.submit_after, self._loop.call_later)
        context = ReplicationContext(me, settings, clock, background)
        self.leading = LeaderStreams(context, self.lead, promise_s)
        call = Lines(context).call
        self._notes = tempfile.TemporaryDirectory()
        note = PromiseFile(Path(self._notes.name))
        promising = Promises(note, clock, lambda: promise_s() is not None)
        self.fetchers = Fetchers(context, self._endpoint_of, call, promising)
        bound = listening_socket(listen)
        self.address = listen.replace(":0", f":{port_of(bound)}")
        self._server = Server(self._loop)
        self._server.open(Door(bound, lambda _: _served(self.leading)))

    def _endpoint_of(self, name: BrokerId) -> Endpoint | None:
        address = self.addresses.get(name)
        return None if address is None else Endpoint(address, START)

    def stop(self) -> None:
        self.fetchers.stop()
        self.leading.stop()
        self._pool.stop()
        self._server.stop("the test is over", 0.1)
        self._loop.close()
        self._notes.cleanup()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()


def _served(leading: LeaderStreams) -> Serve:
    def serve(opened: StreamOpened, stream: Stream) -> None:
        try:
            leading.serve(OpenReplication.from_bytes(bytes(opened.body)), stream)
        except IsologError as error:
            stream.fail(error_bytes(error))

    return serve
