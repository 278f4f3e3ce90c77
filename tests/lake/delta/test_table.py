"""Tables that isolog writes, and tables that others changed."""

from __future__ import annotations

import pyarrow as pa
import pytest
from msgspec.structs import replace

from spark_stream.errors import LakeStopped
from spark_stream.lake.delta.actions import (
    Action,
    AddFile,
    CommitInfo,
    Protocol,
    RemoveFile,
    Txn,
    commit_info,
    decoded,
    encoded,
)
from spark_stream.lake.delta.schema import schema_text
from spark_stream.lake.delta.table import (
    APPEND_ONLY,
    CLUSTER,
    TOPIC_ID,
    Table,
    application,
    first_actions,
)

SCHEMA = pa.schema([("a", pa.int64()), ("b", pa.string())])


def made(**configuration: str) -> Table:
    properties = {
        CLUSTER: "c",
        TOPIC_ID: "t",
        **{k.replace("_", "."): v for k, v in configuration.items()},
    }
    table = Table("orders")
    table.apply(
        0,
        [
            commit_info("CREATE TABLE", 0, "m"),
            *first_actions("orders", SCHEMA, "id", properties, 0),
        ],
    )
    table.apply(
        1,
        [
            commit_info("WRITE", 0, "n"),
            Action(add=AddFile("f", 1, 0)),
            Action(txn=Txn(application("t", 0), 7)),
        ],
    )
    return table


def test_offsets_come_from_the_log() -> None:
    table = made()
    assert table.offset("t", 0) == 7
    assert table.offset("t", 1) is None
    assert table.moved_at == 1
    table.check("c", "t")


def test_a_state_from_a_checkpoint_continues_with_the_next_version() -> None:
    table = made()
    copy = Table("orders")
    copy.restore(
        1,
        [
            Action(protocol=table.protocol),
            Action(metadata=table.metadata),
            *(Action(txn=each) for each in table.txns.values()),
            *(Action(add=each) for each in table.files.values()),
        ],
    )
    copy.apply(
        2, [Action(remove=RemoveFile("f", data_change=False)), Action(add=AddFile("g", 1, 0))]
    )
    assert (copy.offset("t", 0), list(copy.files)) == (7, ["g"])
    with pytest.raises(ValueError, match="version 4 does not follow 2"):
        copy.apply(4, [])


@pytest.mark.parametrize(
    ("cluster", "topic", "whose"),
    [
        ("c", "other", "the topic t"),
        ("other", "t", "the cluster c"),
    ],
)
def test_a_table_of_another_topic_or_cluster_stops(cluster: str, topic: str, whose: str) -> None:
    with pytest.raises(LakeStopped, match=f"belongs to {whose}"):
        made().check(cluster, topic)


def test_a_table_of_another_program_stops() -> None:
    table = Table("orders")
    table.apply(0, first_actions("orders", SCHEMA, "id", {}, 0))
    with pytest.raises(LakeStopped, match="belongs to another program"):
        table.check("c", "t")


@pytest.mark.parametrize(
    ("protocol", "feature"),
    [
        (Protocol(3, 7, ["deletionVectors"], ["deletionVectors"]), "deletionVectors"),
        (Protocol(3, 7, ["b", "a"], ["c", "b"]), "a, b, c"),
        (Protocol(2, 5), "version 5 of writers, version 2 of readers"),
        (Protocol(3, 8, [], []), "version 8 of writers, version 3 of readers"),
    ],
)
def test_a_feature_that_isolog_does_not_write_stops(protocol: Protocol, feature: str) -> None:
    table = made()
    table.apply(2, [Action(protocol=protocol)])
    with pytest.raises(LakeStopped, match=f"needs {feature}, which"):
        table.check("c", "t")


@pytest.mark.parametrize(
    "protocol", [Protocol(1, 2), Protocol(3, 7, ["timestampNtz"], ["timestampNtz", "appendOnly"])]
)
def test_known_features_are_accepted(protocol: Protocol) -> None:
    table = made()
    table.apply(2, [Action(protocol=protocol)])
    table.check("c", "t")


def test_a_property_that_forgets_offsets_stops() -> None:
    table = made(**{"delta_setTransactionRetentionDuration": "interval 1 days"})
    with pytest.raises(LakeStopped, match="removes offsets"):
        table.check("c", "t")


def foreign(operation: str, *actions: Action) -> list[Action]:
    return [Action(commit_info=CommitInfo(operation=operation)), *actions]


@pytest.mark.parametrize(
    ("actions", "reason"),
    [
        (foreign("RESTORE", Action(remove=RemoveFile("f"))), "version 2 restored an older version"),
        (foreign("DELETE", Action(remove=RemoveFile("f"))), "DELETE in version 2 removed rows"),
        (foreign("WRITE", Action(add=AddFile("g", 1, 0))), "WRITE in version 2 added rows"),
    ],
)
def test_removed_and_added_rows_stop_the_worker(actions: list[Action], reason: str) -> None:
    table = made()
    table.apply(2, actions)
    with pytest.raises(LakeStopped, match=reason):
        table.check("c", "t")


def test_a_deletion_that_the_table_permits_does_not_stop() -> None:
    table = made(**{APPEND_ONLY.replace(".", "_"): "false"})
    rest = Action(add=AddFile("g", 1, 0))
    table.apply(2, foreign("DELETE", Action(remove=RemoveFile("f")), rest))
    merged = Action(add=AddFile("h", 1, 0, data_change=False))
    table.apply(3, foreign("OPTIMIZE", Action(remove=RemoveFile("g", data_change=False)), merged))
    table.check("c", "t")


@pytest.mark.parametrize("operation", ["WRITE", "UPDATE", "MERGE", ""])
def test_replaced_rows_stop_the_worker_of_a_table_that_permits_deletions(operation: str) -> None:
    """Its offsets would stand for missing rows, and local retention would remove their records."""
    table = made(**{APPEND_ONLY.replace(".", "_"): "false"})
    added = Action(add=AddFile("g", 1, 0))
    table.apply(2, foreign(operation, Action(remove=RemoveFile("f")), added))
    with pytest.raises(LakeStopped, match="in version 2 replaced rows"):
        table.check("c", "t")


def test_a_lost_column_stops_the_worker() -> None:
    table = made()
    assert table.metadata is not None
    text = schema_text(pa.schema([("a", pa.int64()), ("c", pa.string())]))
    table.apply(2, foreign("REPLACE", Action(metadata=replace(table.metadata, schema_string=text))))
    with pytest.raises(LakeStopped, match="removed or renamed the column 'b'"):
        table.check("c", "t")


def test_versions_are_read_as_they_were_written() -> None:
    actions = [
        commit_info("WRITE", 5, "m", {"mode": "Append"}),
        Action(txn=Txn("isolog:t:0", 3, 5)),
        Action(add=AddFile("p0.parquet", 10, 5)),
    ]
    assert decoded("orders", 1, encoded(actions)) == actions
    assert b'"dataChange":true' in encoded(actions)


def test_unknown_actions_are_ignored_and_damage_is_not() -> None:
    assert decoded("orders", 1, b'{"cdc":{"path":"x"}}\n') == [Action()]
    with pytest.raises(LakeStopped, match="version 1 of the table orders cannot be read"):
        decoded("orders", 1, b'{"add": {"pa')
    for content in (b"", b"\n", bytes(100)):
        with pytest.raises(LakeStopped, match="version 1 of the table orders cannot be read"):
            decoded("orders", 1, content)
