"""All streams of replication on which a broker is the leader."""

from __future__ import annotations

import logging
import threading
from typing import Final

from spark_stream.broker.identity import Identity
from spark_stream.broker.replication.leader_stream import LeaderStream
from spark_stream.broker.replication.partitions import LeadPartitions
from spark_stream.broker.replication.settings import ENDING_S, ReplicationSettings
from spark_stream.consistency.ids import BrokerId
from spark_stream.environment import Clock
from spark_stream.errors import BrokerStopping, InvalidRequest, IsologError, Unsupported
from spark_stream.protocol import StreamOver
from spark_stream.transport.failures import TRANSPORT_ERRORS, error_bytes
from spark_stream.transport.streams import BlockingStream
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
    ) -> None:
        self._me = me
        self._partitions = partitions
        self._settings = settings
        self._clock = clock
        self._lock = threading.RLock()
        self._streams: dict[BrokerId, tuple[LeaderStream, BlockingStream]] = {}
        self._stopped = False

    def serve(self, opened: OpenReplication, wire: BlockingStream) -> None:
        """Serve a follower, until its stream ends.

        Raises:
            Unauthenticated, Unsupported, InvalidRequest, BrokerStopping: nothing has begun.
            BrokerUnavailable: the follower is dead.
        """
        self._check(opened)
        welcome = Welcome(REPLICATION_VERSION, self._me.answer_proof(opened.stream))
        stream = LeaderStream(opened, welcome, self._partitions, self._settings, self._clock)
        with self._lock:
            if self._stopped:
                raise BrokerStopping("the broker is about to stop")
            earlier = self._streams.get(stream.follower)
            self._streams[stream.follower] = stream, wire
        if earlier is not None:
            earlier[0].stop()
            if not earlier[0].wait(_PREDECESSOR_S):
                earlier[1].fail(error_bytes(BrokerStopping("the follower has another stream")))
        listener = threading.Thread(
            target=self._listen, args=(stream, wire), name="isolog-follower-says", daemon=True
        )
        listener.start()
        try:
            for header, body in stream.messages():
                wire.send(header, body, timeout_s=stream.silence_s)
            wire.send(b"", end=True)
        finally:
            stream.stop()
            if not stream.wait(_PREDECESSOR_S):
                wire.fail(error_bytes(BrokerStopping("the stream has ended")))
            with self._lock:
                if self._streams.get(stream.follower) == (stream, wire):
                    del self._streams[stream.follower]

    def _listen(self, stream: LeaderStream, wire: BlockingStream) -> None:
        try:
            stream.take_all(wire)
        except IsologError as error:
            wire.fail(error_bytes(error))
        except (*TRANSPORT_ERRORS, StreamOver):
            pass  # the follower is gone
        except Exception:
            logger.exception("what follower %s says", stream.follower)
            wire.fail(error_bytes(BrokerStopping("the stream has failed")))

    def stop(self) -> None:
        """Ends all streams, and serves no more."""
        with self._lock:
            self._stopped = True
            streams = list(self._streams.values())
        for stream, _ in streams:
            stream.stop()
        deadline = self._clock.monotonic() + ENDING_S
        for stream, wire in streams:
            if not stream.wait(max(0.0, deadline - self._clock.monotonic())):
                wire.fail(error_bytes(BrokerStopping("the broker is about to stop")))
        for stream, _ in streams:
            if not stream.wait(ENDING_S):
                logger.warning("the stream to follower %s does not end", stream.follower)

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
