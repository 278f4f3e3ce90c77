"""Settings of a broker: refused values."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from spark_stream.broker.config import BrokerConfig
from spark_stream.broker.connections import Certificates
from spark_stream.broker.settings import CoreSettings
from spark_stream.errors import InvalidConfig
from spark_stream.scripts.transactions.finishing import TransactionSettings
from spark_stream.storage.settings import LogSettings

JWT = {"issuer": "i", "audience": "a"}


@pytest.mark.parametrize(
    ("settings", "problem"),
    [
        ({"tls": 3}, "tls: takes a table of names and values, not 3"),
        ({"tls": {"nonsense": 1}}, "tls.nonsense: there is no such setting"),
        ({"tls": {"setting": "x"}}, "tls.setting: there is no such setting"),
        ({"metadata_tls": {"min_version": "1.2"}}, "metadata_tls.min_version: there is no such"),
        ({"peer_tls": {"min_version": "1.1"}}, "peer_tls.min_version: takes '1.2' or '1.3'"),
        ({"tls": {"cert": "/none"}}, "tls.cert: /none: No such file"),
        ({"peer_tls": {"cert": "/none", "ca": "/none"}}, "peer_tls.cert: /none: No such file"),
        ({"metadata_tls": {"ca": "/none"}}, "metadata_tls.ca: /none: No such file"),
        ({"jwt": JWT}, "jwt.keys: is missing"),
        ({"jwt": JWT | {"keys": "k", "nonsense": 1}}, "jwt.nonsense: there is no such setting"),
    ],
)
def test_a_refused_setting_of_a_table_is_named(
    settings: dict[str, object], problem: str, tmp_path: Path
):
    with pytest.raises(InvalidConfig, match=rf"\] {re.escape(problem)}"):
        Certificates(BrokerConfig.load(None, dir=tmp_path, **settings))


def test_each_setting_has_one_default(tmp_path: Path):
    assert BrokerConfig(dir=tmp_path).core == CoreSettings()


def test_each_setting_reaches_its_group(tmp_path: Path):
    found = BrokerConfig(
        dir=tmp_path,
        default_replication_factor=2,
        producer_expiry_seconds=3.0,
        leader_balance_seconds=4.0,
        memory_bytes=256 << 20,
        sink_expiry_seconds=5.0,
        topic={"segment.ms": 600},
    )
    assert found.core == CoreSettings(
        LogSettings(segment_ms=600), 2, 3.0, 4.0, 32 << 20, TransactionSettings(5.0)
    )
