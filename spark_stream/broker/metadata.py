"""The metadata that the brokers of a cluster share, as their configuration names it."""

from __future__ import annotations

from pathlib import Path

from spark_stream.broker.certificates import Certificates
from spark_stream.broker.config import BrokerConfig
from spark_stream.cluster.stores.backends import (
    Backend,
    EtcdAccess,
    EtcdBackend,
    EtcdPlace,
    SqliteBackend,
)
from spark_stream.environment import Clock, Machine, SystemClock, SystemMachine


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

    ``conf``: the configuration of a broker, which says how etcd is reached.

    Raises:
        InvalidConfig: the URL, or a setting, cannot be used.
    """
    config = BrokerConfig.load(conf, dir=Path(), metadata=metadata)
    found = shared_backend(config, SystemClock(), SystemMachine(), Certificates(config))
    assert found is not None
    return found
