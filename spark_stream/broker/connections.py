"""A broker's connections as its configuration names them: TLS, and the metadata store.

A broker has one certificate for clients, and one for the other brokers of its cluster. Changed
files are read again.
"""

from __future__ import annotations

import ssl
from collections.abc import Callable
from functools import partial
from pathlib import Path

from spark_stream.broker.config import BrokerConfig
from spark_stream.cluster.stores.backends import (
    Backend,
    EtcdAccess,
    EtcdBackend,
    EtcdPlace,
    SqliteBackend,
)
from spark_stream.environment import Clock, Machine, SystemClock, SystemMachine
from spark_stream.errors import InvalidConfig, InvalidOption
from spark_stream.loggers import logger_of
from spark_stream.transport.tls import (
    RotatingContext,
    TlsFiles,
    check_in_time,
    client_context,
    server_context,
    shown_names,
)


class Certificates:
    """The TLS contexts of a broker, or None for connections without TLS.

    Changed files are read again.
    """

    def __init__(self, config: BrokerConfig) -> None:
        """Read the files.

        Raises:
            InvalidConfig: A file cannot be used.
        """
        self.client_files = clients = config.tls
        self._peer_files = peers = config.peer_tls
        self._broker_id = ""
        try:
            self.for_clients = _rotating(
                clients,
                config.tls.min_version,
                self._check_client,
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
        """Check that other brokers accept this broker's certificate for this id.

        Later certificates are checked too, before they are used.

        Raises:
            InvalidConfig: Other brokers would refuse the certificate.
        """
        self._broker_id = broker_id
        if self.for_peers is not None:
            self._check_peer(self.for_peers.current())

    def _check_client(self, _: ssl.SSLContext) -> None:
        check_in_time(self.client_files)

    def _check_peer(self, context: ssl.SSLContext) -> None:
        try:
            names = shown_names(self._peer_files, context)
        except OSError as error:
            raise InvalidConfig(
                f"peer_tls.cert: other brokers would refuse it: {error}", setting="peer_tls.cert"
            ) from None
        if self._broker_id not in names:
            raise InvalidConfig(
                f"peer_tls.cert: the certificate is for {', '.join(names) or 'no name'}, but"
                f" this is broker {self._broker_id}",
                hint="The broker's id has to be among the DNS names of its certificate.",
                setting="peer_tls.cert",
            )

    def to_peers(self) -> ssl.SSLContext | None:
        """Return the TLS context for connections to other brokers, or None without TLS."""
        return None if self._to_peers is None else self._to_peers.current()

    @property
    def to_metadata(self) -> Callable[[], ssl.SSLContext] | None:
        """The function that returns the TLS context for etcd, or None without TLS."""
        return None if self._to_metadata is None else self._to_metadata.current

    def refresh(self) -> bool:
        """Read changed files again. Return whether the certificate for clients has changed."""
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


logger = logger_of(__name__)


def shared_backend(
    config: BrokerConfig, clock: Clock, machine: Machine, certificates: Certificates
) -> Backend | None:
    """Return the metadata that the brokers of a cluster share, or None for a lone broker."""
    place = config.place
    if isinstance(place, EtcdPlace):
        credential = (config.metadata_user, config.metadata_password.get_secret_value())
        access = EtcdAccess(certificates.to_metadata, credential if config.metadata_user else None)
        return EtcdBackend(place, access, clock, machine, config.lease_s)
    return None if place is None else SqliteBackend(place.resolve())


def named_backend(metadata: str, conf: Path | None) -> Backend:
    """Return the metadata that a URL or a path names, for an operator.

    ``conf``: the configuration of a broker, for the connection to etcd.

    Raises:
        InvalidConfig: The URL, or a setting, cannot be used.
    """
    config = BrokerConfig.load(conf, dir=Path(), metadata=metadata)
    found = shared_backend(config, SystemClock(), SystemMachine(), Certificates(config))
    assert found is not None
    return found
