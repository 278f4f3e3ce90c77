"""Kafka Connect, standalone: a source of lines from a file, and a sink into another one."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import pytest

from bench.kafka.broker import BRIEF
from bench.kafka.jars import java
from tests.kafka.clients import positions_at, values_at
from tests.kafka_jars import jars_of, needs_kafka_jars
from tests.support import eventually

pytestmark = [needs_kafka_jars, pytest.mark.full, pytest.mark.slow, pytest.mark.timeout(600)]

START_S = 240.0
STRINGS = "org.apache.kafka.connect.storage.StringConverter"


@contextmanager
def connect(address: str, folder: Path, *connectors: Mapping[str, object]) -> Iterator[None]:
    """A worker with these connectors. At the end it stores its positions."""
    worker = {
        "bootstrap.servers": address,
        "key.converter": STRINGS,
        "value.converter": STRINGS,
        "listeners": "http://127.0.0.1:0",
        "offset.storage.file.filename": folder / "offsets",
        "offset.flush.interval.ms": 1_000,
    }
    files = []
    for number, settings in enumerate((worker, *connectors)):
        files.append(folder / f"{number}.properties")
        files[-1].write_text("".join(f"{name}={value}\n" for name, value in settings.items()))
    classpath = os.pathsep.join(map(str, (*jars_of("connect"), *jars_of("broker"))))
    command = [java(), *BRIEF, "-cp", classpath, "org.apache.kafka.connect.cli.ConnectStandalone"]
    with (
        (folder / "connect.log").open("ab") as said,
        subprocess.Popen([*command, *files], stdout=said, stderr=said) as process,
    ):
        try:
            yield
        except BaseException:
            print((folder / "connect.log").read_text()[-10_000:])
            raise
        finally:
            process.terminate()


def test_lines_are_copied_once_over_a_restart(topic, server, tmp_path):
    """The source creates the topic. Both connectors continue at their positions."""
    given, copied = tmp_path / "given", tmp_path / "copied"
    source = {
        "name": f"{topic}-source",
        "connector.class": "org.apache.kafka.connect.file.FileStreamSourceConnector",
        "file": given,
        "topic": topic,
        "topic.creation.default.partitions": 1,
        "topic.creation.default.replication.factor": 1,
        "topic.creation.default.retention.ms": 86_400_000,
    }
    sink = {
        "name": f"{topic}-sink",
        "connector.class": "org.apache.kafka.connect.file.FileStreamSinkConnector",
        "file": copied,
        "topics": topic,
    }
    count = 0
    for _ in range(2):
        with connect(server, tmp_path, source, sink):
            for more in (1_000, 1):
                with given.open("a") as file:
                    file.writelines(f"line {number}\n" for number in range(count, count + more))
                count += more
                eventually(
                    lambda: copied.exists() and len(copied.read_bytes()) >= given.stat().st_size,
                    START_S,
                )
        assert copied.read_text() == given.read_text()
        assert values_at(server, topic) == given.read_bytes().splitlines()
        assert positions_at(server, topic, f"connect-{topic}-sink") == [count]
