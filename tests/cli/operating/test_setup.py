"""``isolog config example``: the files of ``conf/``. ``isolog prepare-spark``: bytecode."""

from __future__ import annotations

import configparser
import fnmatch
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from spark_stream.cli.operating import setup as spark_workers
from spark_stream.cli.operating.setup import FOLDER, compile_into, names, prepare_spark
from spark_stream.errors import InvalidOption
from spark_stream.extras import install_hint
from tests.cli.conftest import Call
from tests.conftest import ROOT


def test_every_file_of_conf_is_listed_once(call: Call):
    shown = call("config", "example")
    assert shown.code == 0
    listed = [line.split()[0] for line in shown.out.splitlines()]
    there = [path for path in (ROOT / "conf").rglob("*") if path.is_file()]
    assert sorted(listed) == sorted(str(path.relative_to(ROOT / "conf")) for path in there)


def test_example_is_printed_unchanged(call: Call):
    assert call("config", "example", "broker.toml").out == (ROOT / "conf/broker.toml").read_text()


def test_examples_are_written_and_replaced_only_with_force(call: Call, tmp_path):
    assert call("config", "example", "kubernetes", "--write", str(tmp_path)).code == 0
    made = sorted(path.name for path in tmp_path.rglob("*") if path.is_file())
    assert made == ["etcd.yaml", "isolog.yaml", "kafka.yaml", "lake.yaml"]
    (tmp_path / "kubernetes" / "etcd.yaml").write_text("mine")
    refused = call("config", "example", "--write", str(tmp_path))
    assert refused.code == 2
    assert not (tmp_path / "broker.toml").exists()
    assert (tmp_path / "kubernetes" / "etcd.yaml").read_text() == "mine"
    assert call("config", "example", "--write", str(tmp_path), "--force").code == 0
    assert (tmp_path / "broker.toml").read_bytes() == (FOLDER / "broker.toml").read_bytes()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("broker.tml",), "there is no example 'broker.tml' (is 'broker.toml' meant?)"),
        (("three-brokers",), "is a folder"),
        (("--force",), "--force needs --write"),
    ],
)
def test_invalid_usage_is_refused(call: Call, arguments, message):
    refused = call("config", "example", *arguments)
    assert (refused.code, refused.out) == (2, "")
    assert message in refused.err


def test_package_data_include_every_example():
    """A package contains the files of the link that match a pattern in setup.cfg."""
    setup = configparser.ConfigParser()
    setup.read(ROOT / "setup.cfg")
    patterns = setup["options.package_data"]["spark_stream"].split()
    for name in names():
        depth = name.count("/")
        fits = [each for each in patterns if each.count("/") == depth + 1]
        assert any(fnmatch.fnmatch(f"conf/{name}", each) for each in fits), name


def test_bytecode_in_the_archive_is_imported_and_behaves_like_the_source(tmp_path: Path):
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
    assert raised.value.hint == install_hint("spark")
