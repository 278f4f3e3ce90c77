"""Definitions of lakes: creation, progress, removal, and their topics' descriptions."""

from __future__ import annotations

import sys

import pyarrow as pa
import pytest

import isolog
from isolog.errors import (
    InvalidOption,
    InvalidRequest,
    LakeExists,
    LakeStopped,
    SchemaMismatch,
    UnknownLake,
    UnknownTopic,
    Unsupported,
    UnsupportedType,
)


@pytest.fixture
def log(broker):
    with isolog.connect(broker.address) as found:
        yield found


def test_a_lake_is_listed_and_is_in_the_description_of_its_topics(log):
    ids = {each: log.create_topic(each).id for each in ("orders", "audit", "other")}
    made = log.create_lake(
        "shop", ["orders", "audit"], "s3://bucket/lake/", freshness=1, check=False
    )
    assert [(each.name, each.id) for each in made.topics] == [
        ("audit", ids["audit"]),
        ("orders", ids["orders"]),
    ]
    assert (made.location, made.freshness_ms) == ("s3://bucket/lake", 1_000)
    assert log.lakes() == [made] == [log.describe_lake("shop")]
    found = log.describe("orders").lakes
    assert [(each.name, each.id, each.location) for each in found] == [
        ("shop", made.id, "s3://bucket/lake")
    ]
    assert log.describe("other").lakes == ()
    log._lakes.record_progress("shop", made.id, {ids["orders"]: {0: 7}})
    log._lakes.record_progress("shop", made.id, {ids["orders"]: {0: 3}})
    assert [each.tiered for each in log.describe_lake("shop").topics] == [{}, {0: 7}]
    log.drop_lake("shop")
    assert log.lakes() == []
    assert log.describe("orders").lakes == ()


def test_a_relative_location_is_resolved_where_the_lake_is_created(log, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    log.create_topic("t")
    assert log.create_lake("l", "t", "tables").location == str(tmp_path / "tables")


@pytest.mark.parametrize(
    ("given", "recorded"),
    [
        ("{0}/a/../tables/", "{0}/tables"),
        ("{0}/link/../tables", "{0}/far/tables"),
        ("{0}/link/tables", "{0}/link/tables"),
        ("file://{0}/tables/.", "{0}/tables"),
        ("S3://bucket/a/./b/../tables//", "s3://bucket/a/tables"),
        ("s3://bucket/", "s3://bucket"),
    ],
)
def test_a_location_is_recorded_in_its_plain_form(log, tmp_path, given, recorded):
    """A link before a parent is followed, as the operating system does. Other links stay."""
    (tmp_path / "far" / "away").mkdir(parents=True)
    (tmp_path / "link").symlink_to(tmp_path / "far" / "away")
    log.create_topic("t")
    made = log.create_lake("l", "t", given.format(tmp_path), check=False)
    assert made.location == recorded.format(tmp_path)


def test_a_creation_that_fails_leaves_no_folder(log, tmp_path):
    log.create_topic("t")
    with pytest.raises(UnknownTopic):
        log.create_lake("l", ["t", "none"], tmp_path / "a" / "lake")
    with pytest.raises(InvalidRequest):
        log.create_lake("l", "t", tmp_path / "a" / "lake", freshness=0.5)
    (tmp_path / "b" / "lake" / "t" / "_delta_log").mkdir(parents=True)
    (tmp_path / "b" / "lake" / "t" / "_delta_log" / f"{1:020d}.json").touch()
    with pytest.raises(LakeStopped):
        log.create_lake("l", "t", tmp_path / "b" / "lake")
    assert (tmp_path / "b" / "lake" / "t").exists()
    assert not (tmp_path / "a").exists()
    log.create_lake("l", "t", tmp_path / "a" / "lake")
    with pytest.raises(LakeExists):
        log.create_lake("l", "t", tmp_path / "c" / "lake")
    assert (tmp_path / "a" / "lake").is_dir()
    assert not (tmp_path / "c").exists()


def test_a_name_has_one_lake_and_progress_is_only_that_of_the_present_one(log):
    log.create_topic("t")
    first = log.create_lake("l", "t", "/lake", check=False)
    with pytest.raises(LakeExists, match="there is a lake 'l' already"):
        log.create_lake("l", "t", "/lake", check=False)
    log.drop_lake("l")
    second = log.create_lake("l", "t", "/lake", check=False)
    with pytest.raises(UnknownLake):
        log._lakes.record_progress("l", first.id, {second.topics[0].id: {0: 1}})
    assert log.describe_lake("l").topics[0].tiered == {}
    log.drop_lake("l")
    for call in (log.describe_lake, log.drop_lake):
        with pytest.raises(UnknownLake, match="there is no lake 'l'"):
            call("l")


def test_a_lake_is_altered_and_topics_that_stay_keep_their_offsets(log, tmp_path):
    ids = {each: log.create_topic(each).id for each in ("a", "b", "c")}
    lake = log.create_lake("l", ["a", "b"], tmp_path, freshness=30)
    log._lakes.record_progress("l", lake.id, {ids["a"]: {0: 5}, ids["b"]: {0: 7}})
    altered = log.alter_lake("l", topics=["c", "b"], freshness=2)
    assert [(each.name, each.id, each.tiered) for each in altered.topics] == [
        ("b", ids["b"], {0: 7}),
        ("c", ids["c"], {}),
    ]
    assert (altered.freshness_ms, altered.file_bytes) == (2_000, lake.file_bytes)
    assert log.alter_lake("l", file_bytes=1 << 20).file_bytes == 1 << 20
    assert log.describe("a").lakes == ()
    for settings, error in (
        ({"topics": []}, InvalidRequest),
        ({"topics": ["c", "c"]}, InvalidRequest),
        ({"topics": "none"}, UnknownTopic),
        ({"freshness": 0.1}, InvalidRequest),
    ):
        with pytest.raises(error):
            log.alter_lake("l", **settings)
    with pytest.raises(UnknownLake):
        log.alter_lake("m", freshness=2)
    assert [each.name for each in log.describe_lake("l").topics] == ["b", "c"]


def test_topics_that_cannot_have_a_table_are_refused(log):
    log.create_topic("times", schema=pa.schema([("at", pa.time64("us"))]))
    log.create_topic("spaces", schema=pa.schema([("a b", pa.int64())]))
    log.create_topic("_cuts")
    log.create_topic("t")
    for topics, error, text in (
        ("times", UnsupportedType, "column 'at'"),
        ("spaces", SchemaMismatch, "'a b'"),
        ("_cuts", InvalidRequest, "begin with _"),
        ("missing", UnknownTopic, "missing"),
        (["t", "t"], InvalidRequest, "has the topic 't' twice"),
        ([], InvalidRequest, "the lake 'l' has no topics .*one or more"),
    ):
        with pytest.raises(error, match=text):
            log.create_lake("l", topics, "/lake", check=False)
    assert log.lakes() == []


def test_settings_and_locations_are_checked(log):
    log.create_topic("t")
    for location, settings, error in (
        ("s3://key:secret@bucket/x", {}, InvalidRequest),
        ("s3://bucket/x?secret=1", {}, InvalidRequest),
        ("", {}, InvalidOption),
        ("/lake", {"freshness": 0.5}, InvalidRequest),
        ("/lake", {"file_bytes": 0}, InvalidRequest),
    ):
        with pytest.raises(error) as refused:
            log.create_lake("l", "t", location, check=False, **settings)
        assert "secret" not in str(refused.value)
    assert log.lakes() == []
    azure = "abfss://container@account.dfs.core.windows.net/lake"
    assert log.create_lake("l", "t", azure, check=False).location == azure


def test_a_location_that_overlaps_another_lake_is_refused(log, tmp_path):
    log.create_topic("t")
    log.create_lake("l", "t", tmp_path / "lake")
    for location, relation in (
        (tmp_path / "lake" / "t", "is inside"),
        (tmp_path, "contains"),
        (tmp_path / "x" / ".." / "lake", "is"),
    ):
        for check in (True, False):
            with pytest.raises(InvalidOption, match=f"{relation} the location of the lake l"):
                log.create_lake("m", "t", location, check=check)
    assert [each.name for each in log.lakes()] == ["l"]


def test_a_location_in_the_directory_of_its_broker_is_refused(log, broker, tmp_path):
    log.create_topic("t")
    with pytest.raises(InvalidOption, match="in the directory of a log"):
        log.create_lake("l", "t", broker.directory / "lake")
    assert not (broker.directory / "lake").exists()
    assert log.lakes() == []


def test_the_package_of_iceberg_is_needed_for_the_check(log, tmp_path, monkeypatch):
    log.create_topic("t")
    monkeypatch.setitem(sys.modules, "pyiceberg", None)
    with pytest.raises(InvalidOption, match=r"need the package pyiceberg .*\[iceberg\]"):
        log.create_lake("l", "t", tmp_path / "lake", iceberg="lakes")
    assert not (tmp_path / "lake").exists()
    assert log.create_lake("l", "t", tmp_path, iceberg="lakes", check=False).iceberg == "lakes"


def test_a_lake_with_iceberg_tables_is_not_moved(log, tmp_path):
    log.create_topic("t")
    log.create_lake("l", "t", tmp_path / "lake", iceberg="lakes", check=False)
    with pytest.raises(Unsupported, match=r"cannot be moved.* second lake at the new location"):
        log.alter_lake("l", location=tmp_path / "new")
    assert not (tmp_path / "new").exists()


def test_a_lake_is_not_moved_into_another_one_or_a_log(log, broker, tmp_path):
    log.create_topic("t")
    for name in ("l", "m"):
        log.create_lake(name, "t", tmp_path / name)
    with pytest.raises(InvalidOption, match="is inside the location of the lake m"):
        log.alter_lake("l", location=tmp_path / "m" / "x")
    with pytest.raises(InvalidOption, match="in the directory of a log"):
        log.alter_lake("l", location=broker.directory / "lake")
    assert not (tmp_path / "m" / "x").exists()
    assert log.alter_lake("l", location=tmp_path / "l").location == str(tmp_path / "l")
