"""The Kafka gateway of a broker: its process, its restarts, its end, and its security."""

from __future__ import annotations

import json
import signal
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import confluent_kafka
import psutil
import pytest

from spark_stream.broker.config import BrokerConfig
from spark_stream.broker.gateway import check_gateway
from spark_stream.errors import InvalidConfig
from tests.certificates import HERE, Files, conf_of
from tests.kafka.clients import WAIT_S, asked, produced, producer_at, read_at, sent
from tests.kafka.kafka_batches import by_kafka
from tests.secure_brokers import PASSWORD, as_, asking_broker, client_of
from tests.support import BrokerProcess, alive, eventually, free_port

SERVES = 'kafka_listen = "127.0.0.1:0"\n'
RECORDS = by_kafka([(None, b"v", [], 0)])


def is_gateway(process: psutil.Process) -> bool:
    try:
        return "kafka-gateway" in process.cmdline()
    except psutil.NoSuchProcess:  # another child, which has just ended
        return False


def gateway_at(broker: BrokerProcess) -> tuple[int, str]:
    """The process id and the address of a broker's gateway, once it serves."""
    facts = json.loads((broker.directory / "broker.json").read_text())
    address = str(facts["kafka_address"])

    def process() -> int | None:
        found = [each.pid for each in psutil.Process(broker.pid).children() if is_gateway(each)]
        ready = f"process {found[0]}: isolog kafka-gateway ready {address}" if found else ""
        return found[0] if ready and ready in broker.log_text() else None

    return eventually(process), address


@pytest.fixture
def serving(tmp_path: Path) -> Iterator[BrokerProcess]:
    with BrokerProcess(tmp_path / "log", conf=SERVES) as broker:
        yield broker


def test_a_gateway_that_is_killed_starts_again_at_its_address(serving: BrokerProcess) -> None:
    pid, address = gateway_at(serving)
    with serving.connect() as log:
        log.create_topic("t")
        assert produced(address, "t", RECORDS)["error_code"] == 0
        psutil.Process(pid).kill()
        ended = "the Kafka gateway ended (exit code -9); it starts again in 1 s"
        eventually(lambda: ended in serving.log_text())
        with log.producer() as producer:
            assert producer.send("t", b"v").result().offset == 1
        later, same = gateway_at(serving)
        assert (later != pid, same) == (True, address)
        assert produced(address, "t", RECORDS)["base_offset"] == 2
    assert serving.alive


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_a_gateway_ends_with_its_broker(serving: BrokerProcess, number: int) -> None:
    pid, address = gateway_at(serving)
    producer = producer_at(address)
    producer.list_topics(timeout=WAIT_S)
    began = time.monotonic()
    serving.end(number)
    eventually(lambda: not alive(pid))
    assert time.monotonic() - began < WAIT_S / 2
    assert "gateway ended" not in serving.log_text()


def test_a_paused_gateway_is_killed_at_the_end_of_its_broker(serving: BrokerProcess) -> None:
    pid, _ = gateway_at(serving)
    psutil.Process(pid).suspend()
    assert serving.terminate() == 0
    assert not alive(pid)


def test_gateways_of_brokers_serve_together(tmp_path: Path) -> None:
    ports = [free_port(), free_port()]
    addresses = [f"127.0.0.1:{each}" for each in ports]
    with ExitStack() as ended:
        for name, own, other in zip("ab", addresses, reversed(addresses), strict=True):
            conf = (
                f'id = "{name}"\nmetadata = "{tmp_path / "store"}"\n'
                f'kafka_listen = "{own}"\nkafka_peers = ["{other}"]\n'
            )
            broker = ended.enter_context(BrokerProcess(tmp_path / name, conf=conf))
            assert gateway_at(broker)[1] == own

        def listed() -> bool:
            found = asked(addresses[0], "Metadata", 5, {"topics": []})
            return sorted(each["port"] for each in found["brokers"]) == sorted(ports)

        eventually(listed)


@pytest.mark.parametrize("is_peer", [True, False])
def test_clients_log_in_over_tls(tmp_path: Path, is_peer: bool) -> None:
    """The gateway trusts the authority of the brokers, and needs no credential."""
    files = Files(tmp_path)
    pair = files.issue("1", "1", *HERE)
    authority = conf_of(pair, "peer_tls", ca=files.ca) if is_peer else ""
    trusted = "" if is_peer else f'kafka_ca = "{files.ca}"\n'
    conf = f'id = "1"\n{SERVES}{trusted}{conf_of(pair)}{authority}'
    with asking_broker(tmp_path, conf) as broker:
        _, address = gateway_at(broker)
        settings: dict[str, Any] = {
            "security.protocol": "SASL_SSL",
            "ssl.ca.location": files.ca,
            "sasl.mechanism": "PLAIN",
            "sasl.username": "root",
            "sasl.password": PASSWORD,
        }
        access = {"user": "root", "password": PASSWORD, "tls.ca": files.ca}
        with client_of(broker, **access) as admin:
            admin.add_user("ann", PASSWORD)
        with as_(broker, "root", tls_ca=files.ca) as log:
            log.create_topic("t")
        sent(producer_at(address, **settings), "t", [{"value": b"v", "partition": 0}])
        assert len(read_at(address, "t", **settings)[0]) == 1
        wrong = producer_at(address, **settings | {"sasl.password": "wrong"})
        with pytest.raises(confluent_kafka.KafkaException):
            wrong.list_topics(timeout=2)


@pytest.mark.parametrize(
    ("settings", "problem"),
    [
        ({"kafka_listen": "unix:/a.sock"}, "kafka_listen: 'unix:/a.sock' is not host:port"),
        ({"kafka_peers": ["a"]}, "kafka_peers: 'a' is not host:port"),
        ({"kafka_listen": "0.0.0.0:1"}, "kafka_listen: 0.0.0.0:1 stands for all addresses"),
        (
            {"kafka_listen": "h:1", "authentication": True},
            "kafka_listen: passwords would cross the network in plain text",
        ),
        (
            {"kafka_listen": "h:1", "tls": {"cert": "c", "ca": "a", "require_client_cert": True}},
            "the gateway of a broker has no client certificate",
        ),
        (
            {"kafka_listen": "h:1", "tls": {"cert": "c", "min_version": "1.3"}},
            "accepts TLS 1.2",
        ),
    ],
)
def test_a_gateway_that_cannot_be_used_is_refused(
    settings: dict[str, object], problem: str
) -> None:
    with pytest.raises(InvalidConfig) as caught:
        check_gateway(BrokerConfig.load(None, dir="d", **settings))
    assert problem in str(caught.value)
