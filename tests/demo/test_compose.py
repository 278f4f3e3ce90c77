"""docker-compose*.yml and Dockerfile without Docker: they fit together, and their commands run.

Only names of hosts, paths and ports are substituted, which a container would provide.
"""

from __future__ import annotations

import re
import signal
import subprocess
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import flights_data
import pytest
import yaml

import isolog
from spark_stream.testing.local_etcd import etcd_binary
from tests.conftest import ROOT
from tests.demo.conftest import Shell
from tests.etcd import with_etcd
from tests.kafka.clients import producer_at, read_at, sent
from tests.support import eventually, free_port

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
MEMBERS = [f"etcd-{number}" for number in (1, 2, 3)]
GATEWAYS = {f"kafka-{number}": str(9094 + number) for number in (1, 2)}


def option(service: dict[str, Any], name: str) -> str:
    """The value of an option in a service's command."""
    command: list[str] = service["command"]
    return command[command.index(name) + 1]


def test_brokers_are_published_only_to_this_host() -> None:
    services = compose()["services"]
    for name, port in BROKERS.items():
        broker = services[name]
        ports = [f"127.0.0.1:{each}:{each}" for each in (port, FLIGHT[name])]
        assert broker["ports"] == ports
        assert option(broker, "--flight-listen") == f"0.0.0.0:{FLIGHT[name]}"
    assert not any("ports" in services[name] for name in MEMBERS)


def test_services_do_not_share_volumes() -> None:
    file = compose()
    volumes = {name: each.get("volumes") for name, each in file["services"].items()}
    assert volumes == {
        **{name: [f"{name}:/var/lib/isolog"] for name in BROKERS},
        **{name: [f"{name}:/var/lib/etcd"] for name in MEMBERS},
        **dict.fromkeys(GATEWAYS),
        "demo": ["demo-output:/demo/demo-output"],
        "lake": ["lake:/var/lib/lake"],
    }
    assert file["volumes"].keys() == {*BROKERS, *MEMBERS, "demo-output", "lake"}
    for name in MEMBERS:
        assert "--data-dir=/var/lib/etcd" in file["services"][name]["command"]


def test_clients_do_not_reach_etcd() -> None:
    file = compose()
    networks = {name: each["networks"] for name, each in file["services"].items()}
    assert networks == {
        **{name: ["metadata", "log"] for name in BROKERS},
        **{name: ["metadata"] for name in MEMBERS},
        **{name: ["log"] for name in GATEWAYS},
        "demo": ["log"],
        "lake": ["log"],
    }
    assert file["networks"] == {"metadata": {"internal": True}, "log": None}


def test_brokers_share_only_the_metadata_store() -> None:
    brokers = [compose()["services"][name] for name in BROKERS]
    members = ",".join(f"{name}:2379" for name in MEMBERS)
    assert {option(each, "--metadata") for each in brokers} == {f"etcd://{members}/isolog"}
    for name in ("--id", "--listen"):
        assert len({option(each, name) for each in brokers}) == len(brokers)
    addresses = [option(each, "--advertise") for each in brokers]
    assert addresses == [f"{name}:{port}" for name, port in BROKERS.items()]
    assert option(compose()["services"]["demo"], "--bootstrap") == ",".join(addresses)


def test_members_of_etcd_have_each_others_addresses() -> None:
    services = compose()["services"]
    cluster = ",".join(f"{name}=http://{name}:2380" for name in MEMBERS)
    for name in MEMBERS:
        assert {
            f"--name={name}",
            f"--initial-cluster={cluster}",
            f"--initial-advertise-peer-urls=http://{name}:2380",
            f"--advertise-client-urls=http://{name}:2379",
        } <= set(services[name]["command"])
        assert services[name]["image"] == services["etcd-1"]["image"]
        assert re.fullmatch(r"quay\.io/coreos/etcd:v3\.\d+\.\d+", services[name]["image"])


def test_services_have_health_checks_and_restarts() -> None:
    services = compose()["services"]
    healthy = {"condition": "service_healthy"}
    for name in (*BROKERS, *MEMBERS, *GATEWAYS):
        assert services[name]["restart"] == "unless-stopped"
        assert services[name]["healthcheck"]["test"][0] == "CMD"
    for name in BROKERS:
        assert services[name]["depends_on"] == dict.fromkeys(MEMBERS, healthy)
    for name in GATEWAYS:  # a gateway ends if no broker answers
        assert services[name]["depends_on"] == dict.fromkeys(BROKERS, healthy)


def test_demo_waits_for_healthy_brokers_and_has_a_profile() -> None:
    services = compose()["services"]
    assert services["demo"]["profiles"] == ["demo"]
    healthy = {"condition": "service_healthy"}
    assert services["demo"]["depends_on"] == dict.fromkeys(BROKERS, healthy)
    assert not any("profiles" in services[name] for name in (*BROKERS, *MEMBERS, *GATEWAYS))


@pytest.mark.parametrize("service", GATEWAYS)
def test_gateways_have_each_others_addresses(service: str) -> None:
    found = secure()["services"][service]
    plain = compose()["services"][service]
    for name in ("--bootstrap", "--listen", "--advertise", "--peers", "--metrics-listen"):
        assert option(found, name) == option(plain, name)
    own = f"{service}:{GATEWAYS[service]}"
    others = [f"{name}:{port}" for name, port in GATEWAYS.items() if name != service]
    assert (option(plain, "--advertise"), option(plain, "--peers")) == (own, ",".join(others))
    assert option(plain, "--bootstrap") == option(compose()["services"]["demo"], "--bootstrap")
    assert plain["ports"] == [f"127.0.0.1:{GATEWAYS[service]}:{GATEWAYS[service]}"]


def test_images_have_the_files_of_the_services() -> None:
    services = compose()["services"]
    for name in (*BROKERS, *GATEWAYS, "demo", "lake"):
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


def test_files_copied_into_images_exist_and_are_not_ignored() -> None:
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
    ports: dict[tuple[str, str], str] = field(
        default_factory=lambda: defaultdict(lambda: str(free_port()))
    )

    def word(self, service: str, word: str) -> str:
        for place, instead in (
            ("/etc/isolog/broker.toml", ROOT / "conf" / "broker.toml"),
            ("/etc/isolog", self.folder),
            ("/run/secrets/admin-password", self.folder / "admin-password"),
            ("/var/lib", self.folder / "volumes" / service),
        ):
            word = word.replace(place, str(instead))
        here = re.sub(r"\b(?:0\.0\.0\.0|127\.0\.0\.1):(?=\d)", f"{service}:", word)
        address = r"\b((?:broker|etcd|kafka)-\d):(\d+)"
        return re.sub(address, lambda found: self.address(found[1], found[2]), here).replace(
            "$$", "$"
        )

    def address(self, service: str, port: str) -> str:
        return f"127.0.0.1:{self.ports[service, port]}"

    def command(self, name: str) -> list[str]:
        words = [self.word(name, word) for word in self.services[name]["command"]]
        return [etcd_binary() or "etcd", *words[1:]] if words[0] == "etcd" else words

    def healthcheck(self, name: str) -> list[str]:
        kind, *words = (
            self.word(name, each) for each in self.services[name]["healthcheck"]["test"]
        )
        return ["sh", "-c", *words] if kind == "CMD-SHELL" else words

    def environment(self, name: str) -> dict[str, str]:
        given = self.services[name].get("environment", {})
        return {key: self.word(name, value) for key, value in given.items()}

    def start(self, name: str, shell: Shell, ended: ExitStack) -> subprocess.Popen[str]:
        """Start a service that stops cleanly at the end, unless it has stopped before."""
        (self.folder / "volumes" / name).mkdir(parents=True, exist_ok=True)
        process = subprocess.Popen(
            self.command(name),
            cwd=self.folder,
            env=shell.environment | self.environment(name),
            text=True,
        )
        ended.callback(end_in_order, process)
        return process


@contextmanager
def etcd_of(outside: Outside, shell: Shell) -> Iterator[dict[str, subprocess.Popen[str]]]:
    """The members of etcd. A user of them has to wait until they are ready."""
    with ExitStack() as ended:
        yield {name: outside.start(name, shell, ended) for name in MEMBERS}


@contextmanager
def running(outside: Outside, shell: Shell) -> Iterator[dict[str, subprocess.Popen[str]]]:
    """The brokers, healthy."""
    with ExitStack() as ended:
        processes = {name: outside.start(name, shell, ended) for name in BROKERS}
        for name in BROKERS:
            wait_until_healthy(outside.healthcheck(name), shell, outside.folder)
        yield processes


@contextmanager
def gateways_of(outside: Outside, shell: Shell) -> Iterator[dict[str, subprocess.Popen[str]]]:
    """The gateways, healthy."""
    with ExitStack() as ended:
        processes = {name: outside.start(name, shell, ended) for name in GATEWAYS}
        for name in GATEWAYS:
            wait_until_healthy(outside.healthcheck(name), shell, outside.folder)
        yield processes


def write_and_read(outside: Outside, gateways: dict[str, Any], **settings: str) -> None:
    """Write by Kafka's protocol through one gateway, kill it, and read through the other."""
    one, other = (outside.address(name, port) for name, port in GATEWAYS.items())
    sent(producer_at(one, **settings), "t", [{"value": b"v", "partition": 0}])
    gateways["kafka-1"].kill()
    assert [each.value() for each in read_at(other, "t", **settings)[0]] == [b"v"]


def run_demo(outside: Outside, shell: Shell) -> str:
    workdir = outside.folder / "demo"
    workdir.mkdir()
    for name in ("conf", "examples"):
        (workdir / name).symlink_to(ROOT / name)
    said = shell.run(outside.command("demo"), workdir, **outside.environment("demo"))
    assert (workdir / "demo-output" / "delays.png").exists()
    return said


@pytest.mark.timeout(300)
@with_etcd
def test_records_survive_a_broker_and_a_member_of_etcd(tmp_path: Path, shell: Shell) -> None:
    outside = Outside(tmp_path, compose()["services"])
    addresses = ",".join(outside.address(name, port) for name, port in BROKERS.items())
    with (
        etcd_of(outside, shell) as members,
        running(outside, shell) as brokers,
        ExitStack() as more,
        isolog.connect(addresses) as log,
    ):
        log.create_topic("t", partitions=3, config={"min.insync.replicas": 2})
        with log.producer(isolation="read_committed") as producer:
            for number in range(300):
                producer.send("t", b"%d" % number, partition=number % 3)
            producer.flush()
            members["etcd-1"].kill()
            brokers["broker-1"].kill()
            for number in range(300, 600):
                producer.send("t", b"%d" % number, partition=number % 3)
        table = log.read("t", isolation="read_committed")
        assert sorted(map(int, table["value"].to_pylist())) == list(range(600))
        for process in (members["etcd-1"], brokers["broker-1"]):
            process.wait(30)
        # as `restart` of their services does
        for name in ("etcd-1", "broker-1"):
            outside.start(name, shell, more)
        eventually(lambda: not log.cluster().problems, 60)


@pytest.mark.timeout(300)
@with_etcd
def test_gateways_serve_kafkas_clients(tmp_path: Path, shell: Shell) -> None:
    outside = Outside(tmp_path, compose()["services"])
    shell.run(outside.healthcheck("kafka-1"), tmp_path, code=1)
    with etcd_of(outside, shell), running(outside, shell):
        with gateways_of(outside, shell) as gateways:
            with isolog.connect(outside.address("broker-1", BROKERS["broker-1"])) as log:
                log.create_topic("t")
            write_and_read(outside, gateways)
        shell.run(outside.healthcheck("kafka-2"), tmp_path, code=1)


@pytest.mark.spark
@pytest.mark.timeout(600)
@with_etcd
def test_commands_of_services_run(tmp_path: Path, shell: Shell) -> None:
    outside = Outside(tmp_path, compose(DEMO_MONTHS="1")["services"])
    shell.run(outside.healthcheck("broker-1"), tmp_path, code=1)
    with etcd_of(outside, shell), running(outside, shell):
        demo = outside.command("demo")
        with isolog.connect(demo[demo.index("--bootstrap") + 1]) as log:
            # The topic exists, with records of another program: the demo must not count them.
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
    """Mappings are merged and lists are joined. Of commands, the later one is used."""
    found = dict(one)
    for key, value in other.items():
        if isinstance(value, dict):
            found[key] = merged(one.get(key) or {}, value)
        elif isinstance(value, list) and key not in ("command", "test"):
            found[key] = [*one.get(key, []), *value]
        else:
            found[key] = value
    return found


def test_only_brokers_have_keys_and_each_has_a_configuration() -> None:
    file = secure()
    services = file["services"]
    for number, name in enumerate(BROKERS, 1):
        assert services[name]["command"] == compose()["services"][name]["command"]
        conf = f"conf/secure-three-brokers/broker-{number}.toml"
        assert (ROOT / conf).exists()
        assert services[name]["volumes"] == [
            f"{name}:/var/lib/isolog",
            "certs:/etc/isolog/certs:ro",
            f"./{conf}:/etc/isolog/broker.toml:ro",
        ]
    assert services["demo"]["volumes"] == [
        "demo-output:/demo/demo-output",
        "authority:/etc/isolog/authority:ro",
    ]
    for name in GATEWAYS:
        assert services[name]["volumes"] == ["gateway:/etc/isolog/gateway:ro"]
        assert "--sasl" in services[name]["command"]
    volumes = {"certs", "authority", "gateway"}
    assert file["volumes"].keys() == compose()["volumes"].keys() | volumes
    assert services["set-up"]["networks"] == ["metadata"]
    assert {"set-up", *MEMBERS} == services["broker-1"]["depends_on"].keys()
    assert file["secrets"] == {"admin-password": {"file": "./admin-password"}}
    ignored = (ROOT / ".gitignore").read_text(), (ROOT / ".dockerignore").read_text()
    assert all("admin-password" in each.splitlines() for each in ignored)
    for folder in ("certs", "authority", "gateway"):  # a volume gets their owner
        assert f"/etc/isolog/{folder}" in stages()["broker"]
    assert "pip install '.[certs,kafka,lake,metrics]'" in stages()["build"]


@pytest.mark.spark
@pytest.mark.timeout(600)
@with_etcd
def test_commands_of_secure_services_run(tmp_path: Path, shell: Shell) -> None:
    services = secure(DEMO_MONTHS="1")["services"]
    outside = Outside(tmp_path, services)
    for folder in ("authority", "gateway"):
        (tmp_path / folder).mkdir()
    (tmp_path / "admin-password").write_text("correct horse battery\n")
    for number, name in enumerate(BROKERS, 1):
        mounted = ROOT / "conf" / "secure-three-brokers" / f"broker-{number}.toml"
        command = services[name]["command"]
        command[command.index("--conf") + 1] = str(mounted)
    with etcd_of(outside, shell):
        for _ in range(2):  # existing data stay, but certificates are new
            shell.run(outside.command("set-up"), tmp_path)
        with running(outside, shell):
            shell.run(outside.command("set-up"), tmp_path)
            said = run_demo(outside, shell)
            assert "Records in: 27,004. Records out: 27,004. They agree." in said
            address = outside.address("broker-1", BROKERS["broker-1"])
            ca = str(tmp_path / "authority" / "ca.pem")
            asked = ["isolog", "--tls-ca", ca, "broker", "status", "--bootstrap", address]
            assert "requires authentication" in shell.run(asked, tmp_path, code=1)
            login = {"user": "admin", "password": "correct horse battery"}
            with isolog.connect(address, tls_ca=ca, **login) as log:
                log.create_topic("t")
            settings = {
                "security.protocol": "SASL_SSL",
                "ssl.ca.location": ca,
                "sasl.mechanism": "PLAIN",
                "sasl.username": login["user"],
                "sasl.password": login["password"],
            }
            with gateways_of(outside, shell) as gateways:
                write_and_read(outside, gateways, **settings)


def end_in_order(process: subprocess.Popen[str]) -> None:
    """Stop it as `docker compose stop` does, unless it was killed before."""
    if process.poll() is None:
        process.send_signal(signal.SIGTERM)
        assert process.wait(30) in (
            0,
            -signal.SIGTERM,
        )  # or by the signal: etcd


def wait_until_healthy(healthcheck: list[str], shell: Shell, folder: Path) -> None:
    deadline = time.monotonic() + 60
    while True:
        try:
            shell.run(healthcheck, folder)
            return
        except AssertionError:
            if time.monotonic() > deadline:
                raise
