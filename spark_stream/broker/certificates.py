"""The certificates of a broker: one for clients, and one for the other brokers of its cluster."""

from __future__ import annotations

import ssl
from collections.abc import Callable
from functools import partial

from spark_stream.broker.config import BrokerConfig
from spark_stream.errors import InvalidConfig, InvalidOption
from spark_stream.transport.tls import (
    RotatingContext,
    TlsFiles,
    check_in_time,
    client_context,
    server_context,
    shown_names,
)


class Certificates:
    """The TLS contexts of a broker; None where it uses no TLS. Changed files are read again."""

    def __init__(self, config: BrokerConfig) -> None:
        """Read the files.

        Raises:
            InvalidConfig: a file cannot be used.
        """
        self.client_files = clients = config.tls
        self._peer_files = peers = config.peer_tls
        self._broker_id = ""
        try:
            self.for_clients = _rotating(
                clients,
                config.tls.min_version,
                lambda _: check_in_time(clients),
                requires_client=config.tls.require_client_cert,
            )
            self.for_peers = _rotating(
                peers, config.peer_tls.min_version, self._check_peer, requires_client=True
            )
            etcd = config.metadata_tls
            self._to_metadata = (
                RotatingContext(etcd.paths, partial(client_context, etcd)) if etcd.ca else None
            )
            self._to_peers = (
                None
                if peers.cert is None
                else RotatingContext(peers.paths, partial(client_context, peers))
            )
        except InvalidOption as error:
            raise InvalidConfig(error.message, setting=error.details.get("option")) from None

    def check_own_name(self, broker_id: str) -> None:
        """Check that other brokers take this broker's certificate for that of this id.

        Later certificates are checked as well, before they are used.

        Raises:
            InvalidConfig: they do not.
        """
        self._broker_id = broker_id
        if self.for_peers is not None:
            self._check_peer(self.for_peers.current())

    def _check_peer(self, context: ssl.SSLContext) -> None:
        try:
            names = shown_names(self._peer_files, context)
        except OSError as error:
            raise InvalidConfig(
                f"peer_tls.cert: other brokers would refuse it: {error}", setting="peer_tls.cert"
            ) from None
        if self._broker_id not in names:
            raise InvalidConfig(
                f"peer_tls.cert: it is for {', '.join(names) or 'nobody'}, and this is broker"
                f" {self._broker_id}",
                hint="The broker's id has to be among the DNS names of its certificate.",
                setting="peer_tls.cert",
            )

    def to_peers(self) -> ssl.SSLContext | None:
        """Return the TLS context for connections to other brokers; None: without TLS."""
        return None if self._to_peers is None else self._to_peers.current()

    @property
    def to_metadata(self) -> Callable[[], ssl.SSLContext] | None:
        """What returns the TLS context for connections to etcd; None: without TLS."""
        return None if self._to_metadata is None else self._to_metadata.current

    def refresh(self) -> bool:
        """Read changed files again; return whether the certificate for clients has changed."""
        for each in (self.for_peers, self._to_peers, self._to_metadata):
            if each is not None:
                each.refresh()
        return self.for_clients is not None and self.for_clients.refresh()


def _rotating(
    files: TlsFiles,
    least_version: str,
    check: Callable[[ssl.SSLContext], None],
    *,
    requires_client: bool,
) -> RotatingContext | None:
    if not files.paths:
        return None
    make = partial(server_context, files, least_version, requires_client=requires_client)
    return RotatingContext(files.paths, make, check)
