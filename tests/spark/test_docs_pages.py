"""The blocks of the Spark pages in the docs have their described effects, in one session."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tests.demo.conftest import Shell
from tests.docs.pages import PAGES, Reader, needs_spark


@pytest.mark.full  # in make test: the README's example, and a page without Spark
@pytest.mark.parametrize("name", [name for name in PAGES if needs_spark(name)])
def test_blocks_of_a_page_have_their_described_effect(
    name: str,
    spark: SparkSession,
    tmp_path: Path,
    tmp_path_factory: pytest.TempPathFactory,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    folder = tmp_path / "page"
    reader = Reader(folder, Shell(tmp_path_factory.mktemp("tools")), {"spark": spark})
    monkeypatch.chdir(folder)
    try:
        assert reader.follow(name)
    finally:
        for query in spark.streams.active:
            query.stop()
        reader.leave()
