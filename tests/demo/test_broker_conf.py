"""conf/broker.toml works unchanged, and has every setting with its default."""

from __future__ import annotations

import re
import signal
import subprocess
import tomllib
from pathlib import Path

import pytest

from isolog.errors import InvalidConfig
from spark_stream.broker.config import BrokerConfig
from spark_stream.storage.settings import SETTINGS, LogSettings, shown_settings
from tests.conftest import ROOT
from tests.demo.conftest import Shell

FILE = ROOT / "conf" / "broker.toml"


def test_broker_toml_has_the_defaults() -> None:
    found = BrokerConfig.load(FILE)
    default = BrokerConfig.load(None, dir=found.dir)
    assert found.model_dump(exclude={"topic"}) == default.model_dump(exclude={"topic"})
    assert found.topic_defaults == LogSettings()
    said = {name: str(value).lower() for name, value in found.topic.items()}
    assert said == shown_settings(LogSettings())


@pytest.mark.rule(
    "the settings of a broker, and the precedence of their sources", "broker/config.py"
)
@pytest.mark.parametrize("name", [*BrokerConfig.model_fields, *SETTINGS])
def test_broker_toml_has_every_setting(name: str) -> None:
    quoted = f'"{name}"' if "." in name else name
    table = r"\[topic\]" if name == "topic" else rf"#?{re.escape(quoted)} = "
    assert len(re.findall(rf"^{table}", FILE.read_text(), re.MULTILINE)) == 1


def test_commented_setting_is_valid() -> None:
    text = re.sub(r"^#(\w+ = )", r"\1", FILE.read_text(), flags=re.MULTILINE)
    values = tomllib.loads(text)
    assert values.keys() == BrokerConfig.model_fields.keys()
    BrokerConfig(**values)


def test_broker_starts_with_broker_toml(tmp_path: Path, shell: Shell) -> None:
    command = ["isolog", "broker", "start", "--conf", str(FILE), "--listen", "127.0.0.1:0"]
    with subprocess.Popen(
        command, cwd=tmp_path, env=shell.environment, stdout=subprocess.PIPE, text=True
    ) as broker:
        try:
            assert broker.stdout is not None
            line = broker.stdout.readline()
            assert line.startswith("isolog broker ready 127.0.0.1:")
            assert (tmp_path / "isolog-data" / "isolog.json").exists()
            shell.run(["isolog", "broker", "status", "--bootstrap", line.split()[-1]], tmp_path)
        finally:
            broker.send_signal(signal.SIGTERM)
        assert broker.wait(20) == 0


def test_key_of_all_topics_is_refused() -> None:
    with pytest.raises(InvalidConfig, match=r"partition\.by has no default"):
        BrokerConfig.load(None, dir="d", topic={"partition.by": "id"})


def test_value_of_a_wrong_type_is_refused_with_the_expected_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with pytest.raises(InvalidConfig, match="idle_seconds: takes a number, not 'x'"):
        BrokerConfig.load(None, dir="d", idle_seconds="x")
    monkeypatch.setenv("ISOLOG_PEER_ADDRESSES", "x")
    with pytest.raises(InvalidConfig, match="the variable ISOLOG_PEER_ADDRESSES is not JSON"):
        BrokerConfig.load(None, dir="d")


@pytest.mark.parametrize(
    ("settings", "problem"),
    [
        ({"metadata": "etcd://h:1"}, "is not etcd://HOST:PORT"),
        ({"metadata": "etcd://h/name"}, "is not etcd://HOST:PORT"),
        ({"metadata": "etcd://u:p@h:1/name"}, "is not etcd://HOST:PORT"),
        ({"metadata": "etcd://h:1/a/b"}, "is not etcd://HOST:PORT"),
        ({"metadata": "sqlite://relative"}, "write sqlite:///PATH"),
        ({"metadata": "zookeeper://h:1/x"}, "'zookeeper' is no metadata store"),
        ({"metadata": "10.0.0.1:2379"}, "metadata: '10.0.0.1:2379' is no local path"),
        ({"metadata": "$HOME/meta"}, "is no local path"),
        ({"metadata": "etcd://h:1/x", "lease_seconds": 3.0}, "too short for etcd"),
        ({"metadata": "etcd://h:1/x", "listen": "unix:/s"}, "other hosts cannot connect to"),
    ],
)
def test_unusable_metadata_is_refused(settings: dict[str, object], problem: str) -> None:
    with pytest.raises(InvalidConfig, match=re.escape(problem)):
        BrokerConfig.load(None, dir="d", **settings)


def test_place_of_the_metadata_and_lease_are_set_together() -> None:
    found = BrokerConfig.load(None, dir="d", metadata="etcd://h1:2379,[::1]:2379/prod-1")
    assert str(found.place) == "etcd://h1:2379,[::1]:2379/prod-1"
    assert found.lease_s == 6.0
    alone = BrokerConfig.load(None, dir="d", metadata="sqlite:///a/b%20c.sqlite")
    assert (alone.place, alone.lease_s) == (Path("/a/b c.sqlite"), 3.0)
    secret = BrokerConfig.load(None, dir="d", metadata_password="secret")
    assert "secret" not in repr(secret)
