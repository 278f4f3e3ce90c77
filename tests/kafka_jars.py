"""Kafka, Kafka Connect and Spark's connector for tests, which are skipped without the jars."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from pathlib import Path
from shutil import which

import pytest

from bench.kafka import jars
from bench.kafka.broker import BRIEF, KafkaBroker

ABSENT = "Kafka's jars are missing: run make kafka-jars"


@cache
def jars_of(part: str) -> tuple[Path, ...]:
    """Return the jars of a part of ``bench/kafka/ivy.xml``, or none if they were not fetched."""
    folder = jars.default_cache() / "jars"
    if jars.differences(folder, jars.checksums(jars.CHECKSUMS.read_text())):
        return ()
    return tuple(sorted((folder / part).glob("*.jar")))


needs_kafka_jars = pytest.mark.skipif(
    not jars_of("tools") or which(jars.java()) is None, reason=f"{ABSENT}, with a Java"
)


GATEWAY_AND_KAFKA = ["gateway", pytest.param("kafka", marks=pytest.mark.full)]
"""The servers of a test that runs against both, as parameters of a fixture."""


@pytest.fixture(scope="package")
def real_kafka(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KafkaBroker]:
    """A Kafka of one broker. Tests must not stop it."""
    if not jars_of("broker"):
        pytest.skip(ABSENT)
    place = tmp_path_factory.mktemp("kafka") / "broker"
    with KafkaBroker(jars_of("broker"), place, BRIEF) as broker:
        yield broker
