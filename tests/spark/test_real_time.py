"""examples/real_time.py and its page: Spark's real-time mode, its connector and the gateway."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

import isolog
from tests.conftest import ROOT
from tests.spark.releases import has_kafka
from tests.spark.test_examples import EXAMPLES, run
from tests.support import eventually

pytestmark = [has_kafka, pytest.mark.full]

PAGE = (ROOT / "docs/how-to/real-time-mode.md").read_text()
MARKED = re.findall(r"<!-- test: (\w+) -->\n```\w+\n(.*?)```", PAGE, re.DOTALL)


@pytest.fixture
def job(
    kafka: str,
    topic: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    spark: SparkSession,
) -> Callable[[], AbstractContextManager[None]]:
    """The command of the page, with the topics and the gateway of the test."""
    [words] = re.findall(r"examples/real_time\.py (.*)", dict(MARKED)["job"])
    words = words.replace("localhost:9192", kafka).replace("flights late", f"{topic} {topic}-late")
    arguments = (*shlex.split(words), "--checkpoint", tmp_path, "--every", "1 hour")

    @contextmanager
    def running() -> Iterator[None]:
        script = partial(run, "real_time", None, *arguments, monkeypatch=monkeypatch)
        with ThreadPoolExecutor(1) as pool:
            ended = pool.submit(script)
            try:
                yield
            finally:
                eventually(lambda: spark.streams.active or ended.done())
                for query in spark.streams.active:
                    query.stop()
                ended.result(120)

    return running


def test_records_arrive_before_the_end_of_a_batch(
    job: Callable[[], AbstractContextManager[None]],
    log: isolog.Log,
    topic: str,
    tmp_path: Path,
) -> None:
    """They are written again by a query that was stopped before, and have the same origin."""
    log.create_topic(topic, 2)
    log.create_topic(f"{topic}-late")

    def written() -> list[tuple[bytes, bytes]]:
        table = log.read(f"{topic}-late", columns=["value"], headers=True)
        return [(row["value"], row["headers"][0]["value"]) for row in table.to_pylist()]

    def add(*values: str) -> set[bytes]:
        with log.producer() as producer:
            for value in values:
                producer.send(topic, value, partition=0).result()
        return {value.encode() for value in values}

    def arrived() -> bool:
        return {value for value, _ in written()} == expected

    expected = add("UA 1 late", "UA 3 late")
    add("UA 2 in time")
    with job():
        for number in range(10, 15):
            expected |= add(f"UA {number} late")
            eventually(arrived)
        assert not list(tmp_path.glob("commits/*"))
        assert len(written()) == 7
    with job():
        expected |= add("UA 20 late")
        eventually(arrived)
    found = written()
    assert len(found) == 15  # the records of the first run, twice
    assert len(set(found)) == len({origin for _, origin in found}) == 8
    assert {origin.decode().rpartition("/")[0] for _, origin in found} == {f"{topic}/0"}


def test_page_and_script_have_the_same_command() -> None:
    [script] = re.findall(r"spark-submit .*\n.*late%.*", (EXAMPLES / "real_time.py").read_text())
    words = [shlex.split(text.replace("\\", "")) for text in (script, dict(MARKED)["job"])]
    assert words[0] == words[1]
