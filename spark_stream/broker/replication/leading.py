"""All streams of replication on which a broker is the leader."""

from __future__ import annotations

import logging
import threading
import weakref
from collections.abc import Iterator
from typing import Final

from spark_stream.broker.identity import Identity
from spark_stream.broker.replication.leader_stream import LeaderStream, Reader, Sent
from spark_stream.broker.replication.partitions import LeadPartitions
from spark_stream.broker.replication.settings import ENDING_S, ReplicationSettings
from spark_stream.broker.replication.watch import Watch
from spark_stream.consistency.ids import BrokerId
from spark_stream.environment import Clock
from spark_stream.errors import BrokerStopping, InvalidRequest, Unsupported
from spark_stream.wire.replication_messages import REPLICATION_VERSION, OpenReplication, Welcome

_PREDECESSOR_S: Final = 0.1  # what a stream has to end by itself once its follower has another

logger = logging.getLogger(__name__)


class Leading:
    """Serves followers. A follower has one stream: a second one ends the first."""

    def __init__(
        self,
        me: Identity,
        partitions: LeadPartitions,
        settings: ReplicationSettings,
        clock: Clock,
        watch: Watch,
    ) -> None:
        self._me = me
        self._partitions = partitions
        self._settings = settings
        self._clock = clock
        self._watch = watch
        self._lock = threading.RLock()
        self._streams: dict[BrokerId, LeaderStream] = {}
        self._stopped = False

    def open(self, peer: str, opened: OpenReplication) -> Iterator[Sent]:
        """Begins a stream: what the leader says on it.

        Raises:
            Unauthenticated, Unsupported, InvalidRequest, BrokerStopping: nothing has begun.
        """
        self._check(opened)
        welcome = Welcome(REPLICATION_VERSION, self._me.answer_proof(opened.stream))
        stream = LeaderStream(peer, opened, welcome, self._partitions, self._settings, self._clock)
        with self._lock:
            if self._stopped:
                raise BrokerStopping("the broker is about to stop")
            earlier = self._streams.get(stream.follower)
            self._streams[stream.follower] = stream
        if earlier is not None:
            earlier.stop()
            if not earlier.wait(_PREDECESSOR_S):
                earlier.break_off()
        self._watch.add(stream)
        messages = stream.messages()
        # Flight lets go of them at the end, and at once if the follower is gone before the first.
        weakref.finalize(messages, self._forget, stream).atexit = False
        return messages

    def listen(self, opened: OpenReplication, reader: Reader) -> None:
        """Takes what the follower says on a stream that is open.

        Raises:
            Unauthenticated: the caller is no broker of this cluster.
            InvalidRequest: it is not, or what the follower says makes no sense.
        """
        self._me.check_caller(opened.follower, opened.proof)
        with self._lock:
            stream = self._streams.get(BrokerId(opened.follower))
        if stream is None or stream.opened != opened:
            raise InvalidRequest(f"broker {opened.follower} has no such stream open")
        stream.take_all(reader)

    def stop(self) -> None:
        """Ends all streams, and serves no more."""
        with self._lock:
            self._stopped = True
            streams = list(self._streams.values())
        for stream in streams:
            stream.stop()
        deadline = self._clock.monotonic() + ENDING_S
        for stream in streams:
            if not stream.wait(max(0.0, deadline - self._clock.monotonic())):
                stream.break_off()
        for stream in streams:
            if not stream.wait(ENDING_S):
                logger.warning("the stream to follower %s does not end", stream.follower)

    def _forget(self, stream: LeaderStream) -> None:
        stream.stop()
        if not stream.wait(_PREDECESSOR_S):
            stream.break_off()
        self._watch.remove(stream)
        with self._lock:
            if self._streams.get(stream.follower) is stream:
                del self._streams[stream.follower]

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
