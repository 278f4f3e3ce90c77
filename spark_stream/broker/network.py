"""A broker's connections to its peers: steps that they run, and the streams of replication.

Order of an end: :meth:`ConnectedNetwork.stop_following`, the logs are closed, then
:meth:`ConnectedNetwork.stop`. So no entry is appended to a closed log.
"""

from __future__ import annotations

import ssl
from collections.abc import Callable, Mapping

from spark_stream.broker.core import BrokerCore
from spark_stream.broker.node.identity import BrokerIdentity
from spark_stream.broker.replication.fetchers import Fetchers
from spark_stream.broker.replication.interfaces import Background, ReplicationContext
from spark_stream.broker.replication.leader_stream import LeaderStreams
from spark_stream.broker.replication.lines import Lines
from spark_stream.broker.replication.settings import ReplicationSettings
from spark_stream.broker.scripting.peers import ConnectedPeers
from spark_stream.broker.serving.pool import Pool
from spark_stream.environment import Clock
from spark_stream.transport.client import client_loop


class ConnectedNetwork:
    """The network of one broker process."""

    def __init__(
        self,
        me: BrokerIdentity,
        clock: Clock,
        settings: ReplicationSettings,
        addresses: Mapping[str, str],
        tls: Callable[[], ssl.SSLContext | None] = lambda: None,
    ) -> None:
        """Create the network.

        ``addresses``: addresses of brokers by id, used instead of the registered ones. ``tls``
        returns the TLS context for these connections, or None without TLS.
        """
        self._tls = tls
        self._addresses = addresses
        loop = client_loop()
        self._pool = Pool(loop)
        self._context = ReplicationContext(
            me,
            settings,
            clock,
            Background(self._pool.submit, self._pool.submit_after, loop.call_later),
        )
        self._fetchers: Fetchers | None = None
        self.leading: LeaderStreams | None = None
        """The streams of followers, or None before the broker's core is made."""

    def peers(self, core: BrokerCore) -> ConnectedPeers:
        peers = ConnectedPeers(
            self._context.me,
            core.members,
            self._context.clock,
            core.host.refresh,
            self._addresses,
            self._tls,
        )
        self.leading = LeaderStreams(self._context, core.host, core.promise_to_ask_s)
        lines = Lines(self._context, self._tls)
        self._fetchers = Fetchers(self._context, peers.endpoint_of, lines.call, core.promising)
        return peers

    def links(self, core: BrokerCore) -> Fetchers:
        assert self._fetchers is not None
        return self._fetchers

    def stop_following(self) -> None:
        """End the streams from leaders."""
        if self._fetchers is not None:
            self._fetchers.stop()

    def stop(self) -> None:
        """End all streams."""
        self.stop_following()
        if self.leading is not None:
            self.leading.stop()
        self._pool.stop()
