"""The settings of a broker's core, with their defaults.

:class:`~spark_stream.broker.config.BrokerConfig` reads them, checks their ranges and explains them.
"""

from __future__ import annotations

from msgspec import Struct

from spark_stream.broker.partition.sessions import BROKER_BYTES
from spark_stream.scripts.transactions.finishing import TransactionSettings
from spark_stream.storage.settings import LogSettings


class CoreSettings(Struct, frozen=True):
    """The settings of a broker's core, each under its name in the configuration."""

    topic_defaults: LogSettings = LogSettings()
    default_replication_factor: int | None = None
    producer_expiry_seconds: float = 86_400.0
    leader_balance_seconds: float = 30.0
    recent_bytes: int = BROKER_BYTES
    """The limit of the memory that keeps batches for followers."""
    transactions: TransactionSettings = TransactionSettings()
