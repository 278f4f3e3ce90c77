"""Spark's workers import pyspark from a zip file: with bytecode in it they start sooner."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from spark_stream.cli.operating import setup as spark_workers
from spark_stream.cli.operating.setup import compile_into, prepare_spark
from spark_stream.errors import InvalidOption


def test_a_module_of_the_archive_comes_from_its_bytecode_and_says_the_same(tmp_path: Path):
    archive = tmp_path / "lib.zip"
    with zipfile.ZipFile(archive, "w") as made:
        made.writestr("house/__init__.py", "")
        made.writestr("house/room.py", "def place():\n    return __file__, 'is' is 'is'\n")
        made.writestr("house/tests/test_room.py", "")
        made.writestr("house/names.txt", "a\n")
    assert compile_into(archive) == 2
    assert compile_into(archive) == 0
    with zipfile.ZipFile(archive) as found:
        assert found.read("house/names.txt") == b"a\n"
        assert "house/tests/test_room.pyc" not in found.namelist()
    program = (
        "import sys; sys.path.insert(0, sys.argv[1]); import house.room as r; print(r.place())"
    )
    said = subprocess.run([sys.executable, "-c", program, archive], capture_output=True, text=True)
    assert (said.stdout, said.stderr) == (f"({str(archive / 'house/room.pyc')!r}, True)\n", "")


def test_without_pyspark_the_error_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spark_workers, "find_spec", lambda _: None)
    with pytest.raises(InvalidOption, match="PySpark is not installed") as raised:
        prepare_spark()
    assert raised.value.hint == "Install it: pip install 'isolog[spark]'."
