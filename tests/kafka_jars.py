"""Kafka's tools and Spark's connector for Kafka, for tests. Without the jars these are skipped."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import pytest

from bench.kafka import jars

ABSENT = "Kafka's jars are missing: run make kafka-jars"


@cache
def jars_of(part: str) -> tuple[Path, ...]:
    """Return the jars of ``broker`` or ``connector``, or none if they were not fetched."""
    folder = jars.default_cache() / "jars"
    if jars.differences(folder, jars.checksums(jars.CHECKSUMS.read_text())):
        return ()
    return tuple(sorted((folder / part).glob("*.jar")))


needs_kafka_jars = pytest.mark.skipif(not jars_of("connector"), reason=ABSENT)
