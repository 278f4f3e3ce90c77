"""The README's example of Spark, in the session that all tests share.

``tests/demo/test_readme.py`` runs it unchanged, in a separate Spark.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tests.conftest import stop_broker
from tests.demo.test_readme import example


def test_the_example_runs(
    spark: SparkSession, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its folders differ, because they would be those of the shared JVM."""
    code = re.sub(r'"(incoming|data|checkpoints)/', rf'"{tmp_path}/\1/', example("spark"))
    assert code.count(str(tmp_path)) >= 5
    names: dict[str, object] = {}
    try:
        exec(compile(code, "README.md", "exec"), names)
        said = capsys.readouterr().out
        assert re.search(r"\|\s*1000\|\s*998001\|", said), said
    finally:
        for query in spark.streams.active:
            query.stop()
        stop_broker(tmp_path / "data")
