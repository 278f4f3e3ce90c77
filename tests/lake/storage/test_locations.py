"""Locations where no lake can be created, with real files and a server of objects."""

from __future__ import annotations

from urllib.request import Request, urlopen

import pyarrow as pa
import pytest

from spark_stream.errors import InvalidOption, LakeStopped, LakeUnavailable
from spark_stream.lake.delta.actions import Action, Protocol, encoded, version_path
from spark_stream.lake.delta.table import CLUSTER, LAKE, TOPIC_ID, first_actions
from spark_stream.lake.storage.locations import check_apart, check_location
from spark_stream.lake.storage.stores import open_store

SCHEMA = pa.schema([("n", pa.int64())])
OURS = {CLUSTER: "c", TOPIC_ID: "i", LAKE: "l1"}


def put_table(root, name: str, configuration: dict[str, str], *more: Action) -> None:
    actions = [*first_actions(name, SCHEMA, "id", configuration, 0), *more]
    assert open_store(str(root)).put_if_absent(f"{name}/{version_path(0)}", encoded(actions))


def check(location) -> None:
    check_location(str(location), "c", {"t": "i"})


def test_an_empty_location_is_accepted_and_stays_empty(tmp_path):
    check(tmp_path / "new")
    assert not list((tmp_path / "new").iterdir())


def test_a_location_that_refuses_is_reported(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(
        LakeUnavailable, match=r"refused an operation: (Not a directory|File exists)"
    ):
        check(tmp_path / "file" / "lake")


@pytest.mark.parametrize(
    ("name", "configuration", "more", "reason"),
    [
        ("t", {}, [], "belongs to another program"),
        ("t", {**OURS, CLUSTER: "d"}, [], "belongs to the cluster d"),
        ("t", OURS, [Action(protocol=Protocol(3, 8, [], []))], "needs version 8 of writers"),
        ("t", OURS, [], "table t of the lake with id l1"),
        ("_cuts", OURS, [], "table _cuts of the lake with id l1"),
        (".", {}, [], "the location of the lake is in a Delta table"),
    ],
)
def test_a_location_with_another_table_is_refused(tmp_path, name, configuration, more, reason):
    put_table(tmp_path, name, configuration, *more)
    with pytest.raises(LakeStopped, match=reason):
        check(tmp_path)


@pytest.mark.parametrize("location", ["", "topics/lake", "../data", "../link/lake", ".."])
def test_a_location_in_the_directory_of_a_log_is_refused(tmp_path, location):
    """The last one has its table `data` there."""
    data = tmp_path / "data"
    (data / "topics").mkdir(parents=True)
    (data / "isolog.json").write_text("{}")
    (tmp_path / "link").symlink_to(data)
    with pytest.raises(InvalidOption, match=f"in the directory of a log: {data}") as refused:
        check_location(str(data / location), "c", {"data": "i"})
    assert "another folder" in refused.value.hint
    assert sorted(each.name for each in data.iterdir()) == ["isolog.json", "topics"]
    assert sorted(each.name for each in tmp_path.iterdir()) == ["data", "link"]
    check_location(str(tmp_path), "c", {"t": "i"})


def test_a_location_inside_a_delta_table_is_refused(tmp_path):
    """Its VACUUM would remove the files of the lake."""
    put_table(tmp_path, "t", OURS)
    with pytest.raises(LakeStopped, match=f"in a Delta table: {tmp_path / 't'}"):
        check(tmp_path / "t" / "deep" / "lake")
    assert not (tmp_path / "t" / "deep").exists()


@pytest.mark.parametrize(
    ("location", "relation"),
    [
        ("/a/b", "is the location"),
        ("/a/b/c/d", "is inside the location"),
        ("/a", "contains the location"),
        ("/x/../a/b/", "is the location"),
        ("file:///a/b", "is the location"),
        ("/a/bc", None),
        ("s3://bucket/b/c", "is inside the location"),
        ("s3a://bucket/b/", "is the location"),
        ("s3://bucket", "contains the location"),
        ("s3://bucket/x/../b", "is the location"),
        ("s3://bucket/x/%2e%2e/%62/", "is the location"),
        ("s3://bucket/bc", None),
        ("s3://other/b", None),
        ("gs://bucket/b", None),
        ("abfs://box@account.blob.core.windows.net/b/c", "is inside the location"),
        ("abfss://box@other.dfs.core.windows.net/b", None),
        ("abfss://box2@account.dfs.core.windows.net/b", None),
        ("az://box/b", "is the location"),  # the environment has its account
        ("az://box2/b", None),
    ],
)
def test_locations_of_two_lakes_do_not_overlap(location, relation):
    azure = "abfss://box@account.dfs.core.windows.net/b"
    lakes = {"local": "/a/b", "remote": "s3://bucket/b", "azure": azure}
    if relation is None:
        check_apart(location, lakes)
        return
    with pytest.raises(
        InvalidOption, match=f"{relation} of the lake (local|remote|azure)"
    ) as refused:
        check_apart(location, lakes)
    assert refused.value.details["option"] == "location"


def test_an_unknown_bucket_is_reported_with_the_remedy(objects):
    with pytest.raises(LakeUnavailable, match="the bucket nowhere does not exist") as refused:
        check("s3://nowhere/lake")
    assert "AWS_ENDPOINT_URL" in refused.value.hint
    assert "xml" not in refused.value.message


@pytest.mark.parametrize("text", ["", "localhost:9000"])
def test_an_endpoint_without_a_scheme_is_refused(objects, monkeypatch, text):
    monkeypatch.setenv("AWS_ENDPOINT_URL", text)
    with pytest.raises(InvalidOption, match="AWS_ENDPOINT_URL is no address") as refused:
        check("s3://lake/x")
    assert "http://" in refused.value.hint


def test_missing_keys_are_reported_with_their_variables(objects, monkeypatch):
    for each in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(each)
    monkeypatch.setenv("AWS_METADATA_ENDPOINT", "http://127.0.0.1:9")  # of the instance's role
    with pytest.raises(LakeUnavailable, match="there are no keys for s3://lake/x") as refused:
        check("s3://lake/x")
    assert "AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY" in refused.value.hint


def test_wrong_keys_are_reported_with_the_remedy(objects):
    def begin_to_check_keys(after: bytes) -> None:
        headers = {"Content-Type": "text/plain"}
        address = f"{objects.address}/moto-api/reset-auth"
        urlopen(Request(address, data=after, headers=headers)).close()

    begin_to_check_keys(b"0")
    try:
        with pytest.raises(LakeUnavailable, match="AWS_ACCESS_KEY_ID"):
            check("s3://lake/denied")
    finally:
        begin_to_check_keys(b"inf")
    check("s3://lake/permitted")
