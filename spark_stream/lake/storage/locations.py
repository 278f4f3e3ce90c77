"""The check of a location before a lake is created there."""

from __future__ import annotations

from collections.abc import Mapping

from spark_stream.errors import LakeStopped
from spark_stream.lake.delta.actions import LOG
from spark_stream.lake.delta.table import LAKE
from spark_stream.lake.rounds import CUTS
from spark_stream.lake.storage.snapshots import read_table
from spark_stream.lake.storage.stores import LakeStore, check_store


def check_location(store: LakeStore, cluster: str, topics: Mapping[str, str]) -> None:
    """Check that a location can be written, and has no tables of others.

    ``topics``: ids by name.

    Raises:
        Unsupported: The location replaces files that exist.
        LakeUnavailable: The location did not answer, or refused.
        LakeStopped: The location is a table, or has tables of others.
    """
    check_store(store)
    if next(iter(store.list(f"{LOG}/0")), None) is not None:
        raise LakeStopped(
            "the location of the lake is a Delta table",
            hint="Choose a folder beside it. The table's VACUUM would remove the lake's files.",
        )
    for name, of in {**topics, CUTS: ""}.items():
        table = read_table(store, name)
        if table.version < 0:
            continue
        if name != CUTS:
            table.check(cluster, of)
        found = {} if table.metadata is None else table.metadata.configuration
        raise LakeStopped(
            f"the location has the table {name} of the lake with id {found.get(LAKE)}",
            hint="Choose another location. Tables of a dropped lake stay where they are.",
            table=name,
        )
