"""All streams of replication on which a broker is the leader."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from functools import partial

from spark_stream.broker.node.identity import Identity
from spark_stream.broker.replication.background import Background
from spark_stream.broker.replication.leader_stream import LeaderStream
from spark_stream.broker.replication.partitions import LeadPartitions
from spark_stream.broker.replication.settings import ENDING_S, ReplicationSettings
from spark_stream.consistency.ids import BrokerId
from spark_stream.environment import Clock
from spark_stream.errors import BrokerStopping, InvalidRequest, Unsupported
from spark_stream.transport.streams import Stream
from spark_stream.wire.replication_messages import REPLICATION_VERSION, OpenReplication, Welcome

logger = logging.getLogger(__name__)


class Leading:
    """Serves followers. A follower has one stream: a second one ends the first."""

    def __init__(
        self,
        me: Identity,
        partitions: LeadPartitions,
        settings: ReplicationSettings,
        clock: Clock,
        background: Background,
    ) -> None:
        self._me = me
        self._partitions = partitions
        self._settings = settings
        self._clock = clock
        self._background = background
        self._changed = threading.Condition()  # guards what follows
        self._streams: dict[BrokerId, LeaderStream] = {}
        self._stopped = False

    def serve(
        self, opened: OpenReplication, stream: Stream, over: Callable[[], None] = lambda: None
    ) -> None:
        """Serve a follower from now on; ``over`` is called at the end. On the loop's thread.

        Raises:
            Unauthenticated, Unsupported, InvalidRequest, BrokerStopping: nothing has begun.
        """
        self._check(opened)
        welcome = Welcome(REPLICATION_VERSION, self._me.answer_proof(opened.stream))
        served = LeaderStream(
            opened,
            welcome,
            stream,
            self._partitions,
            self._settings,
            self._clock,
            self._background,
            partial(self._forget, over),
        )
        with self._changed:
            if self._stopped:
                raise BrokerStopping("the broker is about to stop")
            earlier = self._streams.get(served.follower)
            self._streams[served.follower] = served
        if earlier is not None:
            earlier.end(BrokerStopping("the follower has another stream"))
        served.begin()

    def stop(self) -> None:
        """End all streams, and serve no more."""
        with self._changed:
            self._stopped = True
            streams = list(self._streams.values())
        for stream in streams:
            stream.stop()
        with self._changed:
            self._changed.wait_for(lambda: not self._streams, ENDING_S)
        for stream in streams:
            stream.end(BrokerStopping("the broker is about to stop"))

    def _forget(self, over: Callable[[], None], stream: LeaderStream) -> None:
        with self._changed:
            if self._streams.get(stream.follower) is stream:
                del self._streams[stream.follower]
            self._changed.notify_all()
        over()

    def _check(self, opened: OpenReplication) -> None:
        self._me.check_caller(opened.follower, opened.proof)
        if opened.follower == self._me.broker_id:
            raise InvalidRequest(f"broker {opened.follower} cannot follow itself")
        if opened.version != REPLICATION_VERSION:
            raise Unsupported(
                f"version {opened.version} of replication; this broker has {REPLICATION_VERSION}"
            )
        if opened.window_bytes <= 0:
            raise InvalidRequest(f"a window has at least one byte, not {opened.window_bytes}")
