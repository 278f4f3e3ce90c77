"""Locations where no lake can be created, with real files and a server of objects."""

from __future__ import annotations

from urllib.request import Request, urlopen

import pyarrow as pa
import pytest

from spark_stream.errors import LakeStopped, LakeUnavailable
from spark_stream.lake.delta.actions import Action, Protocol, encoded, version_path
from spark_stream.lake.delta.table import CLUSTER, LAKE, TOPIC_ID, first_actions
from spark_stream.lake.storage.locations import check_location
from spark_stream.lake.storage.stores import open_store

SCHEMA = pa.schema([("n", pa.int64())])
OURS = {CLUSTER: "c", TOPIC_ID: "i", LAKE: "l1"}


def put_table(root, name: str, configuration: dict[str, str], *more: Action) -> None:
    actions = [*first_actions(name, SCHEMA, "id", configuration, 0), *more]
    assert open_store(str(root)).put_if_absent(f"{name}/{version_path(0)}", encoded(actions))


def check(location) -> None:
    check_location(open_store(str(location)), "c", {"t": "i"})


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
        (".", {}, [], "the location of the lake is a Delta table"),
    ],
)
def test_a_location_with_another_table_is_refused(tmp_path, name, configuration, more, reason):
    put_table(tmp_path, name, configuration, *more)
    with pytest.raises(LakeStopped, match=reason):
        check(tmp_path)


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
