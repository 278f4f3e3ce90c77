"""A broker's directory and its metadata store belong together, or the broker does not start.

The store says which topics there are; the directory has their records. A store that is new, or an
older copy, would make topics disappear without a word, and their records with them.
"""

from __future__ import annotations

from pathlib import Path

from spark_stream.cluster.backup import STORE_NAME
from spark_stream.cluster.brokers import ClusterSecret, cluster_identity
from spark_stream.cluster.stores.backends import Backend, SqliteBackend
from spark_stream.cluster.stores.store import DurableStore, MetadataStore
from spark_stream.cluster.topics import REMOVED, TOPICS, decode
from spark_stream.environment import Ids
from spark_stream.errors import WrongCluster
from spark_stream.loggers import logger_of
from spark_stream.storage.disk.directory import (
    LogDirectory,
    RunFile,
    StoreMarkFile,
    open_directory,
    recorded_cluster_id,
    topic_folders,
)

logger = logger_of(__name__)


def open_store(
    path: Path, backend: Backend | None, ids: Ids, broker_id: str | None = None
) -> tuple[LogDirectory, DurableStore, ClusterSecret]:
    """Open the broker's directory and the store of its cluster.

    Return both, and the cluster's secret.

    ``backend``: of a shared store; None if the store lies in the directory. ``broker_id``: whose
    directory it must be; None means anybody's.

    Raises:
        WrongCluster: they do not belong together; or a broker has run in the directory, and the
            store is empty or missing.
        MetadataLost: running brokers have another file open than the one at its path, or the
            write-ahead log beside it is that of another file; or etcd has lost changes since the
            directory was used.
    """
    if backend is None:
        directory = open_directory(path, new_id=ids.new_id, broker_id=broker_id)
        backend = own_backend(directory.path)
        known: str | None = directory.cluster_id
    else:
        known = recorded_cluster_id(path)
    if not backend.exists():
        _check_unused(path, f"there is no metadata store {backend}")
    store = backend.open_store(StoreMarkFile(path).recorded())
    try:
        if not store.list(""):
            _check_unused(path, f"the metadata store {backend} is empty")
        found, secret = cluster_identity(store, ids, known)
        directory = open_directory(path, found, ids.new_id, broker_id=broker_id)
        _report_unknown_folders(store, path)
        return directory, store, secret
    except BaseException:
        store.close()
        raise


def own_backend(path: Path) -> Backend:
    """Return the metadata of a lone broker, which lies in its directory."""
    return SqliteBackend(path / STORE_NAME)


def _check_unused(path: Path, lost: str) -> None:
    """Raise WrongCluster if a broker has run in the directory, for then a store knows it.

    ``lost``: what has become of that store, for the message. Without that store the broker would
    be a cluster of its own, under the id of the directory's cluster.
    """
    topics = sorted(set(topic_folders(path).values()))
    if topics:
        shown = ", ".join(topics[:3]) + (", …" if len(topics) > 3 else "")
        found = f"has records of topics ({shown})"
    elif RunFile(path).recorded_run() is not None:
        found = f"belongs to cluster {recorded_cluster_id(path)}"
    else:
        return
    raise WrongCluster(
        f"{path} {found}, and {lost}",
        hint="Start the broker with the store that the directory was used with, or a backup of"
        " it: `isolog broker start --metadata STORE` if several brokers share one. For a new log"
        " give it an empty directory.",
        path=str(path),
    )


def _report_unknown_folders(store: MetadataStore, path: Path) -> None:
    known = {decode(each).id for each in store.list(TOPICS)}
    known |= {each.key.removeprefix(REMOVED) for each in store.list(REMOVED)}
    for topic_id, name in sorted(topic_folders(path).items()):
        if topic_id not in known:
            logger.error(
                "%s: the metadata store knows no topic of this id: the store is older than the"
                " directory, or has lost the topic; the records are kept and not served",
                path / "topics" / name / topic_id,
            )
