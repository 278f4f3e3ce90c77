"""docker-compose.yml and Dockerfile without Docker: they fit together, and their commands run.

What a container would give (names of hosts, places of files, the port) is substituted, nothing
else.
"""

from __future__ import annotations

import re
import signal
import subprocess
import time
from pathlib import Path
from typing import Any

import flights_data
import pytest
import yaml

import spark_stream as isolog
from tests.conftest import ROOT
from tests.demo.conftest import Shell
from tests.support import free_port


def compose(**variables: str) -> dict[str, Any]:
    """The file with ``${NAME:-default}`` filled in."""

    def value(found: re.Match[str]) -> str:
        return variables.get(found[1], found[2])

    text = re.sub(r"\$\{(\w+):-([^}]*)\}", value, (ROOT / "docker-compose.yml").read_text())
    assert "${" not in text
    found: dict[str, Any] = yaml.safe_load(text)
    return found


def stages() -> dict[str, str]:
    """The stages of the Dockerfile, each with its instructions as lines."""
    text = re.sub(r"\\\n\s*", "", (ROOT / "Dockerfile").read_text())
    parts = re.split(r"^FROM \S+ AS ([\w-]+)\n", text, flags=re.MULTILINE)
    return dict(zip(parts[1::2], parts[2::2], strict=True))


def exec_form(stage: str, instruction: str) -> list[str]:
    """The arguments of an instruction such as CMD ["a", "b"]."""
    found = re.search(rf"^{instruction} (\[.*\])$", stages()[stage], flags=re.MULTILINE)
    assert found is not None
    arguments: list[str] = yaml.safe_load(found[1])
    return arguments


def test_the_broker_is_kept_to_this_host_and_its_log_in_a_volume() -> None:
    file = compose()
    broker = file["services"]["broker"]
    assert broker["ports"] == ["127.0.0.1:9092:9092"]
    assert broker["volumes"] == ["log:/var/lib/isolog"]
    assert file["volumes"].keys() == {"log", "demo-output"}
    assert compose(ISOLOG_PORT="1234")["services"]["broker"]["ports"] == ["127.0.0.1:1234:9092"]


def test_the_demo_waits_for_a_healthy_broker_and_is_asked_for_by_its_profile() -> None:
    services = compose()["services"]
    assert services["demo"]["profiles"] == ["demo"]
    assert services["demo"]["depends_on"] == {"broker": {"condition": "service_healthy"}}
    assert "profiles" not in services["broker"]


def test_the_images_have_what_the_services_name() -> None:
    services = compose()["services"]
    for name in ("broker", "demo"):
        assert services[name]["build"] == {"context": ".", "target": name}
        assert "USER isolog" in stages()[name].splitlines()
    assert exec_form("broker", "CMD") == services["broker"]["command"]
    healthcheck = exec_form("broker", r"HEALTHCHECK .*CMD")
    assert ["CMD", *healthcheck] == services["broker"]["healthcheck"]["test"]
    assert exec_form("demo", "CMD") == services["demo"]["command"][:2]
    assert "install -d -o isolog -g isolog /var/lib/isolog" in stages()["broker"]
    assert "/demo/demo-output" in stages()["demo"]


def test_what_the_images_copy_is_there_and_not_ignored() -> None:
    ignored = (ROOT / ".dockerignore").read_text().splitlines()
    for stage in stages().values():
        for copied in re.findall(r"^COPY (?!--from)(.+) \S+$", stage, flags=re.MULTILINE):
            for name in copied.split():
                assert (ROOT / name).exists(), name
                assert name not in ignored


@pytest.mark.spark
@pytest.mark.timeout(600)
def test_the_services_commands_run(tmp_path: Path, shell: Shell) -> None:
    services = compose(DEMO_MONTHS="1")["services"]
    broker, demo = services["broker"], services["demo"]
    address = f"127.0.0.1:{free_port()}"
    inside = {
        "/etc/isolog/broker.toml": str(ROOT / "conf" / "broker.toml"),
        "/var/lib/isolog": str(tmp_path / "volume"),
        "0.0.0.0:9092": address,
        "127.0.0.1:9092": address,
        "broker:9092": address,
    }

    def outside(words: list[str]) -> list[str]:
        return [inside.get(word, word) for word in words]

    healthcheck = outside(broker["healthcheck"]["test"][1:])
    shell.run(healthcheck, tmp_path, code=1)

    environment = {name: inside[value] for name, value in broker["environment"].items()}
    with subprocess.Popen(
        outside(broker["command"]), cwd=tmp_path, env=shell.environment | environment
    ) as process:
        try:
            wait_until_healthy(healthcheck, shell, tmp_path)
            with isolog.connect(address) as log:
                # The topic is there, with records of somebody else: the demo must not count them.
                log.create_topic("flights", partitions=4, schema=flights_data.FLIGHTS)
                with log.producer() as producer:
                    for batch in flights_data.flights(1).slice(0, 10).to_batches():
                        producer.append("flights", batch, partition=2)

                workdir = tmp_path / "demo"
                workdir.mkdir()
                for name in ("conf", "examples"):
                    (workdir / name).symlink_to(ROOT / name)
                said = shell.run(outside(demo["command"]), workdir, **demo["environment"])
                assert "Records in: 27,004. Records out: 27,004. They agree." in said
                assert (workdir / "demo-output" / "delays.png").exists()
                visible = log.read("flights", columns=["carrier"], isolation="read_committed")
            assert visible.num_rows == 27_004 + 10
            shell.run(healthcheck, tmp_path)
        finally:
            process.send_signal(signal.SIGTERM)
        assert process.wait(30) == 0  # within stop_grace_period
    shell.run(healthcheck, tmp_path, code=1)


def wait_until_healthy(healthcheck: list[str], shell: Shell, folder: Path) -> None:
    deadline = time.monotonic() + 60
    while True:
        try:
            shell.run(healthcheck, folder)
            return
        except AssertionError:
            if time.monotonic() > deadline:
                raise
