"""conf/broker.toml works as it is, says every default, and leaves no setting out."""

from __future__ import annotations

import re
import signal
import subprocess
import tomllib
from pathlib import Path

import pytest

from spark_stream.broker.config import BrokerConfig
from spark_stream.errors import InvalidConfig
from spark_stream.storage.settings import SETTINGS, LogSettings, shown_settings
from tests.conftest import ROOT
from tests.demo.conftest import Shell

FILE = ROOT / "conf" / "broker.toml"


def test_it_says_the_defaults() -> None:
    found = BrokerConfig.load(FILE)
    default = BrokerConfig.load(None, dir=found.dir)
    assert found.model_dump(exclude={"topic"}) == default.model_dump(exclude={"topic"})
    assert found.topic_defaults == LogSettings()
    said = {name: str(value).lower() for name, value in found.topic.items()}
    assert said == shown_settings(LogSettings())


@pytest.mark.rule("which settings a broker has, and which source of them wins", "broker/config.py")
@pytest.mark.parametrize("name", [*BrokerConfig.model_fields, *SETTINGS])
def test_every_setting_is_there(name: str) -> None:
    quoted = f'"{name}"' if "." in name else name
    table = r"\[topic\]" if name == "topic" else rf"#?{re.escape(quoted)} = "
    assert len(re.findall(rf"^{table}", FILE.read_text(), re.MULTILINE)) == 1


def test_a_commented_setting_can_be_switched_on() -> None:
    text = re.sub(r"^#(\w+ = )", r"\1", FILE.read_text(), flags=re.MULTILINE)
    values = tomllib.loads(text)
    assert values.keys() == BrokerConfig.model_fields.keys()
    BrokerConfig(**values)


def test_a_broker_starts_with_it(tmp_path: Path, shell: Shell) -> None:
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


def test_a_key_of_all_topics_is_refused() -> None:
    with pytest.raises(InvalidConfig, match=r"partition\.by has no default"):
        BrokerConfig.load(None, dir="d", topic={"partition.by": "id"})


def test_a_value_of_a_wrong_type_is_told_with_what_the_setting_takes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with pytest.raises(InvalidConfig, match="idle_seconds: takes a number, not 'x'"):
        BrokerConfig.load(None, dir="d", idle_seconds="x")
    monkeypatch.setenv("ISOLOG_PEER_ADDRESSES", "x")
    with pytest.raises(InvalidConfig, match="the variable ISOLOG_PEER_ADDRESSES is not JSON"):
        BrokerConfig.load(None, dir="d")
