"""conf/kubernetes and conf/isolog.service: valid, they fit together, and their commands run.

Only name, address and volume are substituted, which a pod would provide.
"""

from __future__ import annotations

import configparser
import re
import signal
import subprocess
import urllib.request
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml

import isolog
from isolog.testing import LocalEtcd
from spark_stream.broker.config import BrokerConfig
from tests.conftest import ROOT
from tests.demo.conftest import Shell
from tests.etcd import needs_etcd
from tests.kafka.clients import asked
from tests.support import BrokerProcess, eventually, free_port

FILES = ("isolog.yaml", "etcd.yaml", "kafka.yaml")
KUBERNETES = "1.30"


def objects(name: str) -> dict[str, dict[str, Any]]:
    """The objects of a file, by kind."""
    found = yaml.safe_load_all((ROOT / "conf" / "kubernetes" / name).read_text())
    return {each["kind"]: each for each in found}


def pod(name: str) -> dict[str, Any]:
    spec: dict[str, Any] = objects(name)["StatefulSet"]["spec"]["template"]["spec"]
    return spec


@pytest.mark.parametrize("name", FILES)
def test_each_object_is_valid_for_kubernetes(name: str) -> None:
    kinds = {"Service", "StatefulSet", "PodDisruptionBudget", "NetworkPolicy"}
    assert objects(name).keys() == kinds
    for each in objects(name).values():
        kubernetes_validate.validate(each, KUBERNETES, strict=True)


@pytest.mark.parametrize("name", FILES)
def test_objects_of_a_file_have_the_same_pods_and_ports(name: str) -> None:
    found = objects(name)
    labels = found["StatefulSet"]["spec"]["template"]["metadata"]["labels"]
    chosen = found["Service"]["spec"]["selector"]
    assert chosen.items() <= labels.items()
    assert found["StatefulSet"]["spec"]["selector"]["matchLabels"] == chosen
    assert found["StatefulSet"]["spec"]["serviceName"] == found["Service"]["metadata"]["name"]
    assert found["PodDisruptionBudget"]["spec"]["selector"]["matchLabels"] == chosen
    assert found["NetworkPolicy"]["spec"]["podSelector"]["matchLabels"] == chosen
    (container,) = pod(name)["containers"]
    ports = {each["name"]: each["containerPort"] for each in container["ports"]}
    assert ports == {each["name"]: each["port"] for each in found["Service"]["spec"]["ports"]}
    listening = re.findall(r"0\.0\.0\.0:(\d+)", " ".join(container["args"]))
    assert sorted(map(int, listening)) == sorted(ports.values())


def test_brokers_use_the_deployed_members_of_etcd() -> None:
    (broker,) = pod("isolog.yaml")["containers"]
    stateful = objects("etcd.yaml")["StatefulSet"]
    names = [f"etcd-{each}.etcd:2379" for each in range(stateful["spec"]["replicas"])]
    assert f"--metadata=etcd://{','.join(names)}/isolog" in broker["args"]


def test_gateways_have_the_addresses_of_brokers_and_of_each_other() -> None:
    (gateway,) = pod("kafka.yaml")["containers"]
    assert f"--bootstrap={','.join(pods_of('isolog.yaml', 'isolog:9092'))}" in gateway["args"]
    address = "isolog-kafka.$(NAMESPACE):9092"
    assert f"--peers={','.join(pods_of('kafka.yaml', address))}" in gateway["args"]
    assert f"--advertise=$(POD).{address}" in gateway["args"]
    reached = objects("isolog.yaml")["NetworkPolicy"]["spec"]["ingress"][0]["from"]
    allowed = [each["podSelector"]["matchLabels"].items() for each in reached]
    labels = objects("kafka.yaml")["StatefulSet"]["spec"]["template"]["metadata"]["labels"]
    assert any(each <= labels.items() for each in allowed)


def pods_of(of: str, below: str) -> list[str]:
    """The names of the pods of a file, with the end of their addresses."""
    found = objects(of)["StatefulSet"]
    count = found["spec"]["replicas"]
    return [f"{found['metadata']['name']}-{number}.{below}" for number in range(count)]


@pytest.mark.full
def test_commands_of_gateways_run(shared: BrokerProcess, tmp_path: Path, shell: Shell) -> None:
    (container,) = pod("kafka.yaml")["containers"]
    addresses = {
        each: f"127.0.0.1:{free_port()}"
        for each in pods_of("kafka.yaml", "isolog-kafka.$(NAMESPACE):9092")
    }
    with ExitStack() as ended:
        for name, address in addresses.items():
            words = " ".join([*container["command"], *container["args"]])
            metrics = f"127.0.0.1:{free_port()}"
            instead = {
                **dict.fromkeys(pods_of("isolog.yaml", "isolog:9092"), shared.address),
                "$(POD)": name.partition(".")[0],
                **addresses,
                "0.0.0.0:9092": address,
                "0.0.0.0:9464": metrics,
            }
            for place, given in instead.items():
                words = words.replace(place, given)
            process = subprocess.Popen(words.split(), cwd=tmp_path, env=shell.environment)
            ended.callback(process.wait, 60)
            ended.callback(process.send_signal, signal.SIGTERM)
            for probe in ("readinessProbe", "livenessProbe"):
                path = container[probe]["httpGet"]["path"]
                eventually(lambda url=f"http://{metrics}{path}": ready(url))

        def listed(address: str) -> set[str]:
            found = asked(address, "Metadata", 5, {"topics": []})["brokers"]
            return {f"{each['host']}:{each['port']}" for each in found}

        for address in addresses.values():
            eventually(lambda at=address: listed(at) == {*addresses.values()})


@pytest.mark.full
@pytest.mark.slow
@pytest.mark.parametrize("of", [pytest.param("isolog.yaml", marks=needs_etcd)])
def test_commands_of_brokers_run(of: str, tmp_path: Path, shell: Shell) -> None:
    (container,) = pod(of)["containers"]
    count = objects(of)["StatefulSet"]["spec"]["replicas"]
    names = [f"isolog-{number}" for number in range(count)]
    ports = {name: (free_port(), free_port(), free_port()) for name in names}
    with LocalEtcd(1) as etcd, ExitStack() as ended:
        for name, (clients, peers, metrics) in ports.items():
            words = [*container["command"], *container["args"]]
            instead = {
                "$(POD).isolog.$(NAMESPACE)": "127.0.0.1",
                "$(POD)": name,
                "0.0.0.0:9092": f"127.0.0.1:{clients}",
                "0.0.0.0:9093": f"127.0.0.1:{peers}",
                "0.0.0.0:9464": f"127.0.0.1:{metrics}",
                "/etc/isolog/broker.toml": str(ROOT / "conf" / "broker.toml"),
                "/var/lib/isolog": str(tmp_path / name),
            }
            for place, given in instead.items():
                words = [each.replace(place, given) for each in words]
            words = [
                f"--metadata={etcd.url('isolog')}" if each.startswith("--metadata=") else each
                for each in words
            ]
            settings = {each["name"]: each["value"] for each in container["env"] if "value" in each}
            process = subprocess.Popen(words, cwd=tmp_path, env=shell.environment | settings)
            ended.callback(process.wait, 60)
            ended.callback(process.send_signal, signal.SIGTERM)
        addresses = [f"127.0.0.1:{clients}" for clients, _, _ in ports.values()]
        path = container["readinessProbe"]["httpGet"]["path"]
        for _, _, metrics in ports.values():
            eventually(lambda url=f"http://127.0.0.1:{metrics}{path}": ready(url))
        with isolog.connect(",".join(addresses)) as log:
            log.create_topic("t", replication_factor=3)
            assert {each.id for each in log.cluster().brokers} == ports.keys()


def ready(url: str) -> bool:
    """Whether the probe succeeds."""
    try:
        with urllib.request.urlopen(url, timeout=5):
            return True
    except OSError:
        return False


def test_systemd_unit_starts_a_configured_broker() -> None:
    unit = configparser.ConfigParser(strict=False, interpolation=None)
    unit.optionxform = str  # type: ignore[assignment,method-assign]
    unit.read(ROOT / "conf" / "isolog.service")
    words = unit["Service"]["ExecStart"].split()
    assert words[1:4] == ["broker", "start", "--conf"]
    assert words[4] == "/etc/isolog/broker.toml"
    assert BrokerConfig.load(ROOT / "conf" / "broker.toml").dir
    assert unit["Install"]["WantedBy"] == "multi-user.target"
