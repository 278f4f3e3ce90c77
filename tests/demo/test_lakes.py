"""The workers of lakes in docker-compose.yml, conf/kubernetes and systemd: their commands run.

Only the addresses and ports are substituted, which a container would provide.
"""

from __future__ import annotations

import configparser
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import kubernetes_validate
import pyarrow as pa
import pytest
import yaml

import isolog
from tests.broker.metrics.scraping import page
from tests.conftest import ROOT
from tests.demo.test_compose import compose
from tests.demo.test_kubernetes import KUBERNETES
from tests.lake_worker.lake_tables import rows_of
from tests.support import BrokerProcess, eventually, free_port


def deployment() -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load((ROOT / "conf/kubernetes/lake.yaml").read_text())
    return found


def unit() -> configparser.SectionProxy:
    found = configparser.ConfigParser(strict=False, interpolation=None)
    found.optionxform = str  # type: ignore[assignment,method-assign]
    found.read(ROOT / "conf" / "isolog-lake@.service")
    return found["Service"]


def commands() -> dict[str, list[str]]:
    (container,) = deployment()["spec"]["template"]["spec"]["containers"]
    return {
        "compose": compose(LAKE="shop")["services"]["lake"]["command"],
        "kubernetes": [*container["command"], *container["args"]],
        "systemd": unit()["ExecStart"].replace("%i", "shop").split(),
    }


def test_unit_may_write_the_folders_of_the_docs() -> None:
    found, page = unit(), (ROOT / "docs" / "how-to" / "tables.md").read_text()
    assert found["ProtectSystem"] == "strict"
    folders = [f"/var/lib/{found['StateDirectory']}", found["ReadWritePaths"].removeprefix("-")]
    assert " and ".join(f"`{each}`" for each in folders) in page


@pytest.mark.slow
@pytest.mark.quick("compose")
@pytest.mark.parametrize("of", commands())
def test_command_of_a_worker_runs(of: str, broker: BrokerProcess, tmp_path: Path) -> None:
    metrics = f"127.0.0.1:{free_port()}"
    words = []
    for each in commands()[of]:
        word = re.sub(r"\b(0\.0\.0\.0|127\.0\.0\.1):9464", metrics, each)
        words.append(re.sub(r"\b(broker|isolog)-\d.*", broker.address, word))
    assert Path(words[0]).name == "isolog"
    words[:1] = [sys.executable, "-m", "isolog"]
    if of == "systemd":  # its variable is in the file of the environment
        words += ["--bootstrap", broker.address]
    with isolog.connect(broker.address) as log:
        log.create_topic("orders", schema="n bigint")
        with log.producer() as producer:
            producer.append("orders", pa.table({"n": [1, 2, 3]})).result(60)
        log.create_lake("shop", "orders", tmp_path / "lake", freshness=1)
        worker = subprocess.Popen(words, cwd=tmp_path)
        try:
            eventually(lambda: is_ready(metrics), 60)
            assert rows_of(tmp_path / "lake", "orders")["n"].to_pylist() == [1, 2, 3]
        finally:
            worker.terminate()
            assert worker.wait(60) == 0


def is_ready(address: str) -> bool:
    try:
        return page(address, "/health/ready")[0] == 200
    except OSError:
        return False


def test_deployment_is_valid_and_reaches_the_brokers() -> None:
    kubernetes_validate.validate(deployment(), KUBERNETES, strict=True)
    template = deployment()["spec"]["template"]
    assert template["metadata"]["labels"]["isolog-client"] == "true"
    assert deployment()["spec"]["selector"]["matchLabels"].items() <= (
        template["metadata"]["labels"].items()
    )
    (container,) = template["spec"]["containers"]
    names = ",".join(f"isolog-{each}.isolog:9092" for each in range(3))
    assert f"--bootstrap={names}" in container["args"]


def test_service_has_a_profile_and_no_network_to_the_metadata_store() -> None:
    file = compose()
    lake = file["services"]["lake"]
    assert (lake["profiles"], lake["networks"]) == (["lake"], ["log"])
    assert lake["volumes"] == ["lake:/var/lib/lake"]
    assert "/var/lib/lake" in (ROOT / "Dockerfile").read_text()


def test_no_command_has_keys() -> None:
    for words in commands().values():
        assert not re.search(r"(?i)secret|key|password|token", " ".join(words))
    environment = compose(AWS_ACCESS_KEY_ID="k")["services"]["lake"]["environment"]
    assert environment["AWS_ACCESS_KEY_ID"] == "k"
    assert "EnvironmentFile" in unit()
