"""Kafka's tools and Spark's connector for Kafka, for tests. Without the jars these are skipped."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from shutil import which

import pytest

from bench.kafka import jars

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
