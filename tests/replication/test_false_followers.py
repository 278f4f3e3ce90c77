"""What takes part in replication without the cluster's secret counts for nothing."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator

import pyarrow.flight as fl
import pytest

import spark_stream as isolog
from spark_stream.broker.identity import Identity
from spark_stream.cluster.brokers import Brokers
from spark_stream.cluster.identity import ClusterSecret, cluster_identity
from spark_stream.cluster.sqlite import SqliteStore
from spark_stream.consistency.epochs import EpochHistory
from spark_stream.consistency.ids import BrokerId
from spark_stream.environment import SystemIds
from spark_stream.errors import IsologError
from spark_stream.testing import LocalCluster
from spark_stream.wire.replication_messages import (
    BODY,
    Acked,
    Follow,
    Frame,
    OpenReplication,
    unpack,
)
from tests.replication.clusters import in_sync, partition, read, written
from tests.support import NUMBERS, flight_client, numbers

pytestmark = pytest.mark.chaos


class FalseFollower:
    """Acknowledges in a follower's place whatever the leader sends; knows all but, maybe, the key.

    ``secret``: the cluster's, or a guess.
    """

    def __init__(
        self, cluster: LocalCluster, topic_id: str, leader: int, follower: int, secret: str
    ) -> None:
        store = SqliteStore(cluster.folder / "metadata" / "metadata.sqlite")
        with contextlib.closing(store):
            cluster_id, true = cluster_identity(store, SystemIds(), None)
            known = {each.id: each for each in Brokers(store).all()}
        key = true if secret == "true" else ClusterSecret(secret.encode())
        me = Identity(cluster_id, BrokerId(str(follower)), "an incarnation", key)
        opened = OpenReplication(
            stream="false",
            follower=me.broker_id,
            proof=me.call_proof(str(leader), known[str(leader)].incarnation),
            pid=1,
            window_bytes=16 << 20,
        )
        self._history = Follow(
            0, topic_id, 0, 0, known[str(follower)].generation, EpochHistory(0, 0, [])
        )
        self._client = flight_client(cluster.broker(leader).address)
        self._opened = opened
        self._reader = None
        self.error: Exception | None = None
        self._thread = threading.Thread(target=self._forge, daemon=True)
        self._thread.start()

    def _forge(self) -> None:
        command = self._opened.to_command()
        try:
            self._reader = reader = self._client.do_get(fl.Ticket(command))
            writer, _ = self._client.do_put(fl.FlightDescriptor.for_command(command), BODY)
            writer.write_metadata(self._history.pack())
            while True:
                chunk = reader.read_chunk()
                message = unpack(chunk.app_metadata, chunk.data)
                if isinstance(message, Frame):
                    writer.write_metadata(Acked(((0, message.end),)).pack())
        except (fl.FlightError, StopIteration, OSError) as error:
            self.error = error

    def end(self) -> None:
        if self._reader is not None:
            self._reader.cancel()
        self._thread.join(30)
        self._client.close()


@contextlib.contextmanager
def false_followers(
    cluster: LocalCluster, log: isolog.Log, topic: str, secret: str
) -> Iterator[list[FalseFollower]]:
    """Both followers are cut off from the leader, and another acknowledges in their places."""
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


@pytest.mark.parametrize("secret", ["true", "a guess"])
def test_a_false_follower_gets_no_record_acknowledged(cluster, log, topic, secret):
    """With the secret the attack works: so it is the secret that keeps it from working."""
    config = {"min.insync.replicas": 2, "replica.lag.time.max.ms": 600_000}
    log.create_topic(topic, 1, 3, schema=NUMBERS, config=config)
    written(log, topic, 0, 5)
    in_sync(log, topic)
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
        assert all(isinstance(each.error, fl.FlightUnauthenticatedError) for each in followers)
        assert read(log, topic) == list(range(5))
