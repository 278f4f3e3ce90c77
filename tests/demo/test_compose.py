"""docker-compose*.yml and Dockerfile without Docker: they fit together, and their commands run.

What a container would give (names of hosts, places of files, the port) is substituted, nothing
else.
"""

from __future__ import annotations

import re
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import flights_data
import pytest
import yaml

import spark_stream as isolog
from tests.conftest import ROOT
from tests.demo.conftest import Shell
from tests.support import free_port

pytestmark = pytest.mark.full


def compose(name: str = "docker-compose.yml", **variables: str) -> dict[str, Any]:
    """A file with ``${NAME:-default}`` filled in."""

    def value(found: re.Match[str]) -> str:
        return variables.get(found[1], found[2])

    text = re.sub(r"\$\{(\w+):-([^}]*)\}", value, (ROOT / name).read_text())
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


BROKERS = {f"broker-{number}": str(9091 + number) for number in (1, 2, 3)}
FLIGHT = {f"broker-{number}": str(9191 + number) for number in (1, 2, 3)}


def option(service: dict[str, Any], name: str) -> str:
    """The value of an option in a service's command."""
    command: list[str] = service["command"]
    return command[command.index(name) + 1]


def test_the_brokers_are_kept_to_this_host_and_their_logs_in_a_volume() -> None:
    file = compose()
    for name, port in BROKERS.items():
        broker = file["services"][name]
        ports = [f"127.0.0.1:{each}:{each}" for each in (port, FLIGHT[name])]
        assert broker["ports"] == ports
        assert option(broker, "--flight-listen") == f"0.0.0.0:{FLIGHT[name]}"
        assert broker["volumes"] == ["log:/var/lib/isolog"]
    assert file["volumes"].keys() == {"log", "demo-output"}


def test_the_brokers_share_a_metadata_store_and_nothing_else() -> None:
    brokers = [compose()["services"][name] for name in BROKERS]
    assert {option(each, "--metadata") for each in brokers} == {"/var/lib/isolog/metadata.sqlite"}
    for name in ("--id", "--dir", "--listen"):
        assert len({option(each, name) for each in brokers}) == len(brokers)
    addresses = [option(each, "--advertise") for each in brokers]
    assert addresses == [f"{name}:{port}" for name, port in BROKERS.items()]
    assert option(compose()["services"]["demo"], "--bootstrap") == ",".join(addresses)


def test_the_demo_waits_for_healthy_brokers_and_is_asked_for_by_its_profile() -> None:
    services = compose()["services"]
    assert services["demo"]["profiles"] == ["demo"]
    healthy = {"condition": "service_healthy"}
    assert services["demo"]["depends_on"] == dict.fromkeys(BROKERS, healthy)
    assert not any("profiles" in services[name] for name in BROKERS)


def test_the_images_have_what_the_services_name() -> None:
    services = compose()["services"]
    for name in (*BROKERS, "demo"):
        target = "demo" if name == "demo" else "broker"
        assert services[name]["build"] == {"context": ".", "target": target}
        assert "USER isolog" in stages()[target].splitlines()
    for name, port in BROKERS.items():
        command = exec_form("broker", "CMD")
        assert command[:5] == services[name]["command"][:5]
        assert option(services[name], "--dir").startswith(command[command.index("--dir") + 1])
        healthcheck = exec_form("broker", r"HEALTHCHECK .*CMD")
        checked = ["CMD", *healthcheck[:-1], f"127.0.0.1:{port}"]
        assert services[name]["healthcheck"]["test"] == checked
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


@dataclass(frozen=True)
class Outside:
    """The services' commands outside of containers: on other ports, and in a folder."""

    folder: Path
    services: dict[str, Any]
    ports: dict[str, str] = field(
        default_factory=lambda: {
            port: str(free_port()) for port in (*BROKERS.values(), *FLIGHT.values())
        }
    )

    def word(self, word: str) -> str:
        for place, instead in (
            ("/etc/isolog/broker.toml", ROOT / "conf" / "broker.toml"),
            ("/etc/isolog", self.folder),
            ("/run/secrets/admin-password", self.folder / "admin-password"),
            ("/var/lib/isolog", self.folder / "volume"),
        ):
            word = word.replace(place, str(instead))
        address = r"(?:0\.0\.0\.0|127\.0\.0\.1|broker-\d):(9\d+)"
        found = re.sub(address, lambda found: f"127.0.0.1:{self.port(found[1])}", word)
        return found.replace("$$", "$")

    def port(self, name: str) -> str:
        return self.ports.get(name, "0")  # that of the other brokers is any

    def command(self, name: str) -> list[str]:
        return [self.word(word) for word in self.services[name]["command"]]

    def healthcheck(self, name: str) -> list[str]:
        kind, *words = map(self.word, self.services[name]["healthcheck"]["test"])
        return ["sh", "-c", *words] if kind == "CMD-SHELL" else words

    def environment(self, name: str) -> dict[str, str]:
        given = self.services[name].get("environment", {})
        return {key: self.word(value) for key, value in given.items()}


@contextmanager
def running(outside: Outside, shell: Shell) -> Iterator[None]:
    """The brokers, healthy."""
    with ExitStack() as ended:
        for name in BROKERS:
            process = subprocess.Popen(
                outside.command(name),
                cwd=outside.folder,
                env=shell.environment | outside.environment(name),
                text=True,
            )
            ended.callback(end_in_order, process)
        for name in BROKERS:
            wait_until_healthy(outside.healthcheck(name), shell, outside.folder)
        yield


def run_demo(outside: Outside, shell: Shell) -> str:
    workdir = outside.folder / "demo"
    workdir.mkdir()
    for name in ("conf", "examples"):
        (workdir / name).symlink_to(ROOT / name)
    said = shell.run(outside.command("demo"), workdir, **outside.environment("demo"))
    assert (workdir / "demo-output" / "delays.png").exists()
    return said


@pytest.mark.spark
@pytest.mark.timeout(600)
def test_the_services_commands_run(tmp_path: Path, shell: Shell) -> None:
    outside = Outside(tmp_path, compose(DEMO_MONTHS="1")["services"])
    (tmp_path / "volume").mkdir()
    shell.run(outside.healthcheck("broker-1"), tmp_path, code=1)
    with running(outside, shell):
        demo = outside.command("demo")
        with isolog.connect(demo[demo.index("--bootstrap") + 1]) as log:
            # The topic is there, with records of somebody else: the demo must not count them.
            schema = flights_data.FLIGHTS
            log.create_topic("flights", partitions=4, replication_factor=3, schema=schema)
            with log.producer() as producer:
                for batch in flights_data.flights(1).slice(0, 10).to_batches():
                    producer.append("flights", batch, partition=2)
            said = run_demo(outside, shell)
            assert "Records in: 27,004. Records out: 27,004. They agree." in said
            visible = log.read("flights", columns=["carrier"], isolation="read_committed")
        assert visible.num_rows == 27_004 + 10
        shell.run(outside.healthcheck("broker-1"), tmp_path)
    shell.run(outside.healthcheck("broker-1"), tmp_path, code=1)


# -- with TLS and authentication -------------------------------------------------------------------


def secure(**variables: str) -> dict[str, Any]:
    """Both files, merged as Compose does it."""
    return merged(compose(**variables), compose("docker-compose.secure.yml", **variables))


def merged(one: dict[str, Any], other: dict[str, Any]) -> dict[str, Any]:
    """Mappings are merged and lists are joined, but for commands: the later one is taken."""
    found = dict(one)
    for key, value in other.items():
        if isinstance(value, dict):
            found[key] = merged(one.get(key) or {}, value)
        elif isinstance(value, list) and key not in ("command", "test"):
            found[key] = [*one.get(key, []), *value]
        else:
            found[key] = value
    return found


def test_only_brokers_have_keys_and_each_has_its_own_configuration() -> None:
    file = secure()
    services = file["services"]
    for number, name in enumerate(BROKERS, 1):
        assert services[name]["command"] == compose()["services"][name]["command"]
        conf = f"conf/secure-three-brokers/broker-{number}.toml"
        assert (ROOT / conf).exists()
        assert services[name]["volumes"] == [
            "log:/var/lib/isolog",
            "certs:/etc/isolog/certs:ro",
            f"./{conf}:/etc/isolog/broker.toml:ro",
        ]
    assert services["demo"]["volumes"] == [
        "demo-output:/demo/demo-output",
        "authority:/etc/isolog/authority:ro",
    ]
    assert file["volumes"].keys() == {"log", "demo-output", "certs", "authority"}
    assert file["secrets"] == {"admin-password": {"file": "./admin-password"}}
    ignored = (ROOT / ".gitignore").read_text(), (ROOT / ".dockerignore").read_text()
    assert all("admin-password" in each.splitlines() for each in ignored)
    for folder in ("/etc/isolog/certs", "/etc/isolog/authority"):  # a volume gets their owner
        assert folder in stages()["broker"]
    assert "pip install '.[certs]'" in stages()["build"]


@pytest.mark.spark
@pytest.mark.timeout(600)
def test_the_secure_services_commands_run(tmp_path: Path, shell: Shell) -> None:
    services = secure(DEMO_MONTHS="1")["services"]
    outside = Outside(tmp_path, services)
    for folder in ("volume", "authority"):
        (tmp_path / folder).mkdir()
    (tmp_path / "admin-password").write_text("correct horse battery\n")
    for number, name in enumerate(BROKERS, 1):
        mounted = ROOT / "conf" / "secure-three-brokers" / f"broker-{number}.toml"
        command = services[name]["command"]
        command[command.index("--conf") + 1] = str(mounted)
    for _ in range(2):  # what is there stays; certificates are new
        shell.run(outside.command("set-up"), tmp_path)
    with running(outside, shell):
        shell.run(outside.command("set-up"), tmp_path)
        said = run_demo(outside, shell)
        assert "Records in: 27,004. Records out: 27,004. They agree." in said
        address = f"127.0.0.1:{outside.port(BROKERS['broker-1'])}"
        ca = str(tmp_path / "authority" / "ca.pem")
        asked = ["isolog", "--tls-ca", ca, "broker", "status", "--bootstrap", address]
        assert "asks who is calling" in shell.run(asked, tmp_path, code=1)


def end_in_order(process: subprocess.Popen[str]) -> None:
    process.send_signal(signal.SIGTERM)
    assert process.wait(30) == 0  # within stop_grace_period


def wait_until_healthy(healthcheck: list[str], shell: Shell, folder: Path) -> None:
    deadline = time.monotonic() + 60
    while True:
        try:
            shell.run(healthcheck, folder)
            return
        except AssertionError:
            if time.monotonic() > deadline:
                raise
