"""A single Kafka broker: KRaft, in a temporary folder, on free ports."""

from __future__ import annotations

import base64
import os
import socket
import subprocess
import time
import uuid
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final, Self

import psutil
from confluent_kafka.admin import AdminClient, NewTopic

from bench.kafka.jars import java

HEAP: Final = ("-Xms1G", "-Xmx1G")
"""The memory of Kafka's start script, which also sets these options:"""

_JVM: Final = (
    *HEAP,
    "-server",
    "-XX:+UseG1GC",
    "-XX:MaxGCPauseMillis=20",
    "-XX:InitiatingHeapOccupancyPercent=35",
    "-XX:+ExplicitGCInvokesConcurrent",
    "-Djava.awt.headless=true",
)
BRIEF: Final = ("-Xmx512M", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC")
"""Options of a JVM that runs briefly: the work of its second compiler would not pay off."""

_START_S: Final = 240.0


class KafkaBroker:
    """A broker that is its own controller, with the defaults of Kafka and of a single node."""

    def __init__(self, jars: Sequence[Path], place: Path, options: Sequence[str] = _JVM) -> None:
        place.mkdir()
        self._place = place
        broker, controller = _free_ports(2)
        self.bootstrap = f"127.0.0.1:{broker}"
        settings = {
            "process.roles": "broker,controller",
            "node.id": "1",
            "controller.quorum.bootstrap.servers": f"127.0.0.1:{controller}",
            "listeners": f"PLAINTEXT://{self.bootstrap},CONTROLLER://127.0.0.1:{controller}",
            "advertised.listeners": f"PLAINTEXT://{self.bootstrap}",
            "controller.listener.names": "CONTROLLER",
            "log.dirs": str(place / "log"),
            "auto.create.topics.enable": "false",
            # The rest are the settings of a single node.
            "offsets.topic.replication.factor": "1",
            "transaction.state.log.replication.factor": "1",
            "transaction.state.log.min.isr": "1",
            "share.coordinator.state.topic.replication.factor": "1",
            "share.coordinator.state.topic.min.isr": "1",
            "group.initial.rebalance.delay.ms": "0",
        }
        written = place / "server.properties"
        written.write_text("".join(f"{name}={value}\n" for name, value in settings.items()))
        classpath = ("-cp", os.pathsep.join(map(str, jars)))
        cluster = base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")
        formats = ("format", "--standalone", "-t", cluster, "-c", str(written))
        subprocess.run(
            [java(), *BRIEF, *classpath, "kafka.tools.StorageTool", *formats],
            check=True,
            stdout=subprocess.DEVNULL,
        )
        self._said = (place / "kafka.log").open("w")
        self._process = subprocess.Popen(
            [java(), *options, *classpath, "kafka.Kafka", str(written)],
            stdout=self._said,
            stderr=subprocess.STDOUT,
        )
        self.process = psutil.Process(self._process.pid)
        try:
            self._wait_until_it_listens()
            # Its clients log errors if the broker ends before them. They are of no interest.
            self._admin = AdminClient({"bootstrap.servers": self.bootstrap, "log_level": 0})
            self._admin.list_topics(timeout=_START_S)
        except BaseException:
            self._end()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._end()

    def create_topic(
        self, name: str, partitions: int = 1, config: Mapping[str, str] | None = None
    ) -> None:
        """Make the topic, and wait until its partitions have a leader."""
        create_topic(self._admin, name, partitions, config)

    def delete_topic(self, name: str) -> None:
        self._admin.delete_topics([name])[name].result(30)

    def bytes_of(self, topic: str) -> int:
        """Return the size of the filled parts of the topic's files."""
        folders = self._place.glob(f"log/{topic}-*")
        return sum(path.stat().st_size for folder in folders for path in folder.glob("*.log"))

    def _wait_until_it_listens(self) -> None:
        deadline = time.monotonic() + _START_S
        while not _listens(self.bootstrap):
            if self._process.poll() is not None or time.monotonic() > deadline:
                said = (self._place / "kafka.log").read_text()
                raise RuntimeError(f"Kafka does not serve; it said:\n{said}")
            time.sleep(0.1)

    def _end(self) -> None:
        self._process.terminate()
        try:
            self._process.wait(30)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._said.close()


def create_topic(
    admin: AdminClient, name: str, partitions: int = 1, config: Mapping[str, str] | None = None
) -> None:
    """Make a topic, and wait until its partitions have a leader."""
    new = NewTopic(name, partitions, 1, config=dict(config or {}))
    admin.create_topics([new])[name].result(30)
    deadline = time.monotonic() + 30
    while not _has_leaders(admin, name, partitions):
        if time.monotonic() > deadline:
            raise TimeoutError(f"topic {name} has no leaders")
        time.sleep(0.02)


def _has_leaders(admin: AdminClient, name: str, partitions: int) -> bool:
    known = admin.list_topics(name, timeout=10).topics[name].partitions
    return len(known) == partitions and all(each.leader >= 0 for each in known.values())


def _free_ports(count: int) -> list[int]:
    """Ports that were free recently, because Kafka does not report the port that it chose."""
    held = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [each.getsockname()[1] for each in held]
    for each in held:
        each.close()
    return ports


def _listens(address: str) -> bool:
    host, _, port = address.partition(":")
    try:
        socket.create_connection((host, int(port)), 1).close()
    except OSError:
        return False
    return True
