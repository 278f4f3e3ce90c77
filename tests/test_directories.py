"""A path has the same meaning for clients, Spark, brokers and commands."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

import pytest

import isolog
from isolog.errors import InvalidOption, UnknownLog
from spark_stream.broker.config import BrokerConfig
from spark_stream.cli.app import execute
from spark_stream.cli.options import named_directory, where
from spark_stream.datasource.options import sink_options, source_options
from spark_stream.directories import has_keys, local_directory
from spark_stream.testing import LocalCluster, local_cluster

STORES = [
    "s3a://bucket/log",
    "s3://bucket/log",
    "hdfs://host:8020/log",
    "hdfs:///log",
    "abfss://container@account.dfs.core.windows.net/log",
    "wasbs://container@account/log",
    "dbfs:/log",
    "gs://bucket/log",
    "oss://bucket/log",
    "adl://account/log",
    "S3A://bucket/log",
    " s3a://bucket/log",
    "s3a:/bucket/log",  # as pathlib shortens it
    "s3:bucket",
    "s3:bucket/log",
    "dbfs:log",
    "hdfs:",
]
BROKERS = [
    "127.0.0.1:9092",
    "localhost:9092",
    "a.example:9092,b.example:9092",
    "[::1]:9092",
    "host:9092/topic",
    "c:9092",
    "kafka://host",
    "kafka://host:9092",
    "kafka:host",
    "http://host:9092",
    "https://host/log",
    "isolog://host:9092",
    "SASL_SSL://host:9092",
]
VARIABLES = ["$HOME/log", "${HOME}/log", "/data/$USER", "/data/${env:USER}/log", "%USERPROFILE%/l"]
REFUSED = [
    *((text, "directory of its broker's host") for text in STORES),
    *((text, "address of a broker") for text in BROKERS),
    *((text, "variable") for text in VARIABLES),
    ("file:///data/$USER", "variable"),
    ("file://host/data", "another host"),
    ("file:data", "absolute path"),
    ("file:", "absolute path"),
    ("C:\\log", "drive of Windows"),
    ("c:/log", "drive of Windows"),
    ("~no-such-user-here/log", "home directory"),
    ("", "empty"),
    ("a\0b", "null character"),
    ("file:///a%00b", "null character"),
    ("/a/\ud800", "not UTF-8"),
    ("/a/\udcff", "not UTF-8"),  # as Python reads such a name from a directory
    ("file:///a%FF", "not UTF-8"),
]


def by_connect(text: str) -> str:
    with pytest.raises(UnknownLog) as missing:
        isolog.connect(path=text, create=False)
    return str(missing.value.details["path"])


def by_path_object(text: str) -> str:
    with pytest.raises(UnknownLog) as missing:
        isolog.connect(path=Path(text) if text else text, create=False)
    return str(missing.value.details["path"])


def by_asyncio(text: str) -> str:
    async def opened() -> None:
        await isolog.aio.connect(path=text, create=False)

    with pytest.raises(UnknownLog) as missing:
        asyncio.run(opened())
    return str(missing.value.details["path"])


def by_source(text: str) -> str:
    return str(source_options({"path": text, "subscribe": "t"}).place.path)


def by_sink(text: str) -> str:
    return str(sink_options({"path": text, "topic": "t"}).place.path)


def by_sparks_variable(text: str) -> str:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("ISOLOG_PATH", text)
        return str(source_options({"subscribe": "t"}).place.path)


def by_option(text: str) -> str:
    return str(named_directory(text).absolute())


def by_shells_variable(text: str) -> str:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("ISOLOG_PATH", text)
        found = where(None, None)[1]
    assert found is not None
    return str(found.absolute())


def by_brokers_variable(text: str) -> str:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("ISOLOG_DIR", text)
        return str(BrokerConfig.load(None).dir.absolute())


def by_settings(text: str) -> str:
    return str(BrokerConfig.load(None, dir=text).dir.absolute())


def by_local_cluster(text: str) -> str:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(local_cluster.LocalCluster, "_add", lambda *_: None)
        with LocalCluster(folder=text) as cluster:
            return str(cluster.folder)


ENTRIES: list[Callable[[str], str]] = [
    by_connect,
    by_path_object,
    by_asyncio,
    by_source,
    by_sink,
    by_sparks_variable,
    by_option,
    by_shells_variable,
    by_brokers_variable,
    by_settings,
    by_local_cluster,
]
COMMANDS = [
    ["topic", "list", "--path"],
    ["produce", "t", "--path"],
    ["broker", "start", "--dir"],
    ["broker", "stop", "--dir"],
    ["console", "--path"],
]


@pytest.fixture(autouse=True)
def in_a_home(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "home").mkdir()
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)


@pytest.mark.rule("valid values of `path`", "directories.py")
@pytest.mark.parametrize(("text", "problem"), REFUSED)
def test_each_way_to_open_a_log_refuses_paths_that_are_no_local_directories(
    tmp_path: Path, text: str, problem: str
) -> None:
    for entry in ENTRIES:
        if (not text or "\0" in text or "\ud800" in text) and "variable" in entry.__name__:
            continue  # an empty variable is unset, and none contains such characters
        if not text and entry is by_local_cluster:
            continue  # its folder is temporary then
        if text.startswith("file:") and entry is by_path_object:
            continue  # pathlib itself removes slashes
        with pytest.raises(InvalidOption, match=problem) as refused:
            entry(text)
        assert refused.value.hint != InvalidOption.hint
    assert [each.name for each in tmp_path.rglob("*")] == ["home"]


@pytest.mark.parametrize("text", VARIABLES)
def test_error_about_a_variable_names_the_way_to_a_directory_of_this_name(text: str) -> None:
    assert local_directory((Path.cwd() / text).as_uri()) == Path.cwd() / text
    with pytest.raises(InvalidOption) as refused:
        local_directory(text)
    assert "file: URI" in (refused.value.hint or "")


@pytest.mark.parametrize("given", [b"data", 7])
def test_paths_that_are_not_text_are_refused(given: object) -> None:
    with pytest.raises(TypeError, match="path must be a str or an"):
        isolog.connect(path=given)  # type: ignore[arg-type]


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_commands_refuse_paths_that_are_not_local_directories(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], command: list[str]
) -> None:
    assert execute([*command, "s3a://bucket/log"]) == 2
    said = capfd.readouterr().err
    assert said.startswith("error: --path (or --dir) 's3a://bucket/log' has the scheme s3a")
    assert [each.name for each in tmp_path.rglob("*")] == ["home"]


@pytest.mark.parametrize("entry", ENTRIES)
def test_each_way_to_open_a_log_resolves_file_uris_and_the_home_directory(
    tmp_path: Path, entry: Callable[[str], str]
) -> None:
    home = tmp_path / "home"
    cases = {
        "~/log": home / "log",
        "log": tmp_path / "log",
        f"file:{home}/log": home / "log",
        "./~no-such-user-here": tmp_path / "~no-such-user-here",
        "./~root/log": tmp_path / "~root/log",
        "./s3a:/bucket": tmp_path / "s3a:/bucket",
        "./127.0.0.1:9092": tmp_path / "127.0.0.1:9092",
        "log:v2": tmp_path / "log:v2",
        "cash$": tmp_path / "cash$",
        "100%/a%b": tmp_path / "100%/a%b",
    }
    if entry is by_path_object:  # pathlib removes "./"
        cases = {text: want for text, want in cases.items() if not text.startswith("./")}
    else:
        cases[f"file://{home}/log"] = home / "log"
        cases[f"FILE://localhost{home}/log"] = home / "log"
        cases[(home / "a $b").as_uri()] = home / "a $b"
    for text, want in cases.items():
        assert entry(text) == str(want), text


@pytest.mark.parametrize(
    ("location", "expected"),
    [
        ("abfss://container@account.dfs.core.windows.net/lake", False),
        ("abfs://container@account.dfs.core.windows.net/lake", False),
        ("abfss://container:secret@account.dfs.core.windows.net/lake", True),
        ("abfss://a@container@account.dfs.core.windows.net/lake", True),
        ("abfss://container@account.dfs.core.windows.net/lake?sig=secret", True),
        ("az://container/lake", False),
        ("az://secret@container/lake", True),
        ("s3://lake/a", False),
        ("s3://key:secret@lake/a", True),
        ("s3://key@lake/a", True),
        ("s3://@lake/a", True),
        ("s3://lake/a?secret=1", True),
        ("/folder/a@b", False),
    ],
)
def test_addresses_with_keys_are_detected(location, expected):
    """The part before ``@`` is the container in an address of Azure."""
    assert has_keys(location) is expected
