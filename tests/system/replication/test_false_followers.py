"""Acknowledgements of followers without the secret of the cluster do not count."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator

import pytest

import isolog
from isolog.errors import IsologError, Unauthenticated
from isolog.testing import LocalCluster
from spark_stream.broker.node.identity import BrokerIdentity
from spark_stream.cluster.brokers import Brokers, ClusterSecret, cluster_identity
from spark_stream.cluster.stores.sqlite import SqliteStore
from spark_stream.consistency.ids import BrokerId
from spark_stream.consistency.replication.epochs import EpochHistory
from spark_stream.environment import SystemIds
from spark_stream.transport.client import ClientChannel
from spark_stream.transport.streams import TRANSPORT_ERRORS, failure_of
from spark_stream.wire.messages import REPLICATE
from spark_stream.wire.replication_messages import Acked, Follow, Frame, OpenReplication, unpack
from tests.support import NUMBERS, numbers
from tests.system.replication.clusters import append_replicated, await_in_sync, partition, read

pytestmark = pytest.mark.chaos


class FalseFollower:
    """A client that acknowledges all messages of a leader in the name of a follower.

    ``secret``: ``true`` for that of the cluster, or a guess. All other facts are right.
    """

    def __init__(
        self, cluster: LocalCluster, topic_id: str, leader: int, follower: int, secret: str
    ) -> None:
        store = SqliteStore(cluster.folder / "metadata" / "metadata.sqlite")
        with contextlib.closing(store):
            cluster_id, true = cluster_identity(store, SystemIds(), None)
            known = {each.id: each for each in Brokers(store).all()}
        key = true if secret == "true" else ClusterSecret(secret.encode())
        me = BrokerIdentity(cluster_id, BrokerId(str(follower)), "an incarnation", key)
        opened = OpenReplication(
            stream="false",
            follower=me.broker_id,
            proof=me.call_proof(str(leader), known[str(leader)].incarnation),
            window_bytes=16 << 20,
        )
        self._history = Follow(
            0, topic_id, 0, 0, known[str(follower)].generation, EpochHistory(0, 0, [])
        )
        self._channel = ClientChannel(cluster.broker(leader).peer_address, timeout_s=30)
        self._wire = self._channel.open(REPLICATE, b"", opened.to_bytes())
        self.error: IsologError | None = None
        self._thread = threading.Thread(target=self._forge, daemon=True)
        self._thread.start()

    def _forge(self) -> None:
        try:
            self._wire.send(self._history.pack())
            while (received := self._wire.receive()) is not None:
                message = unpack(received.header, received.body)
                if isinstance(message, Frame):
                    self._wire.send(Acked(((0, message.end),)).pack())
        except TRANSPORT_ERRORS as error:
            self.error = failure_of(error, "the leader")

    def end(self) -> None:
        self._channel.close()
        self._thread.join(30)


@contextlib.contextmanager
def false_followers(
    cluster: LocalCluster, log: isolog.Log, topic: str, secret: str
) -> Iterator[list[FalseFollower]]:
    """Partition both followers from the leader, and let false ones acknowledge in their names."""
    leader = int(partition(log, topic).leader)
    topic_id = log.describe(topic).id
    others = [each for each in cluster.brokers if each != leader]
    for each in others:
        cluster.cut(leader, each)
    found = [FalseFollower(cluster, topic_id, leader, each, secret) for each in others]
    try:
        yield found
    finally:
        for each in found:
            each.end()
        cluster.heal()


@pytest.mark.rule(
    "the proof that a caller or a server is a broker of this cluster", "broker/node/identity.py"
)
@pytest.mark.parametrize("secret", ["true", "a guess"])
def test_false_follower_without_the_secret_is_refused(cluster, log, topic, secret):
    """With the secret the attack succeeds, which shows that only the secret prevents it."""
    config = {"min.insync.replicas": 2, "replica.lag.time.max.ms": 600_000}
    log.create_topic(topic, 1, 3, schema=NUMBERS, config=config)
    append_replicated(log, topic, 0, 5)
    await_in_sync(log, topic)
    with (
        false_followers(cluster, log, topic, secret) as followers,
        log.producer(isolation="read_committed", timeout_ms=4_000) as producer,
    ):
        append = producer.append(topic, numbers(5, 20), 0)
        if secret == "true":
            append.result(30)
            return
        with pytest.raises(IsologError) as caught:
            append.result(30)
        assert caught.value.code in ("UNKNOWN_OUTCOME", "REQUEST_TIMEOUT", "NOT_ENOUGH_REPLICAS")
        assert all(isinstance(each.error, Unauthenticated) for each in followers)
        assert read(log, topic) == list(range(5))
