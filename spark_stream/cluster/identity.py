"""Which cluster a store belongs to: one record, made once and never changed."""

from __future__ import annotations

from typing import Final

from spark_stream.cluster.store import MetadataStore
from spark_stream.environment import Ids
from spark_stream.errors import WrongCluster

CLUSTER: Final = "cluster"


def cluster_id(store: MetadataStore, ids: Ids, known: str | None) -> str:
    """The id of the store's cluster; a store that has none takes ``known``, or a new id.

    ``known`` is the id in a broker's directory; None for a new directory.

    Raises:
        WrongCluster: the directory belongs to another cluster.
    """
    record = store.get(CLUSTER)
    while record is None:
        store.put(CLUSTER, {"id": known or ids.new_id()}, expected=0)
        record = store.get(CLUSTER)  # another broker may have been first
    found = str(record.value["id"])
    if known is not None and known != found:
        raise WrongCluster(
            f"this directory belongs to cluster {known}, the metadata store to cluster {found}",
            hint="Give the broker the metadata store of its own cluster, or an empty directory.",
            directory=known,
            store=found,
        )
    return found
