"""A broker's identity: its directory, the metadata store of its cluster, and its proofs to others.

**One process serves a directory.** The lock is the kernel's (flock): it cannot outlive its process,
so ``kill -9`` leaves nothing to clean up. It is on ``broker.lock``. ``broker.json`` has the address
of its holder, and counts only while the lock is held.

**A directory and a metadata store belong together, or the broker does not start.** The store has
the topics, and the directory has their records. With an empty store, or an older copy, topics would
disappear without a message, and their records with them.

**Brokers prove to each other that they are of one cluster.** The cluster's secret is never sent. A
caller sends a proof: a keyed hash of its own id and of the id and incarnation of the broker that it
means to call. Another process that listens at the address of a dead broker gets a proof that no
other broker accepts. It cannot answer either: the proof of an answer covers a number that the
caller has just made. :meth:`BrokerIdentity.check_caller` is the only place that decides whether a
caller is a broker of this cluster.
"""

from __future__ import annotations

import contextlib
import json
import os
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import psutil
from msgspec import Struct

from spark_stream.cluster.backup import STORE_NAME
from spark_stream.cluster.brokers import ClusterSecret, cluster_identity
from spark_stream.cluster.stores.backends import Backend, SqliteBackend
from spark_stream.cluster.stores.store import DurableStore, MetadataStore
from spark_stream.cluster.topics import REMOVED, TOPICS, decode
from spark_stream.consistency.ids import BrokerId
from spark_stream.environment import Ids
from spark_stream.errors import DirectoryInUse, StorageFailure, Unauthenticated, WrongCluster
from spark_stream.loggers import logger_of
from spark_stream.operating_system import lock
from spark_stream.storage.disk.directory import (
    LogDirectory,
    RunFile,
    StoreMarkFile,
    open_directory,
    recorded_cluster_id,
    topic_folders,
)

_CALL: Final = "call"
_ANSWER: Final = "answer"


class Endpoint(Struct, frozen=True):
    """The address of a broker, and the incarnation that listens there."""

    address: str
    incarnation: str


class BrokerIdentity(Struct, frozen=True):
    """This broker's cluster and id, the incarnation of its process, and the cluster's secret."""

    cluster_id: str
    broker_id: BrokerId
    incarnation: str
    secret: ClusterSecret

    def call_proof(self, broker_id: str, incarnation: str) -> str:
        """Return the proof that a call from this broker to another one carries."""
        return self.secret.prove(_CALL, self.broker_id, broker_id, incarnation)

    def check_caller(self, caller: str, proof: str, names: Sequence[str] = ()) -> None:
        """Check that the caller is the broker with this id, and that it means to call this one.

        ``names``: those in the caller's certificate, if it has shown one.

        Raises:
            Unauthenticated: The proof is not that broker's, or it was made for another broker or
                for an earlier start of this one. Or the certificate is another broker's.
        """
        if names and caller not in names:
            raise Unauthenticated(
                f"the caller claims to be broker {caller}, but its certificate names"
                f" {', '.join(names)}",
                hint="Issue each broker a certificate that has its id among the names.",
            )
        if not self.secret.has_proven(proof, _CALL, caller, self.broker_id, self.incarnation):
            raise Unauthenticated(
                f"the caller has not proved that it is broker {caller} of cluster {self.cluster_id}"
                f" and that its call is for the present run of broker {self.broker_id}",
                hint="Start both with the same setting `metadata`. That store has their secret.",
            )

    def answer_proof(self, nonce: str) -> str:
        """Return the proof that this broker's answer to a call with this nonce carries."""
        return self.secret.prove(_ANSWER, self.broker_id, nonce)

    def check_answer(self, broker_id: str, nonce: str, proof: str) -> None:
        """Check that the called broker has sent this answer.

        Raises:
            Unauthenticated: Another process has sent it.
        """
        if not self.secret.has_proven(proof, _ANSWER, broker_id, nonce):
            raise Unauthenticated(
                f"the process that answers in the place of broker {broker_id} has not proved that"
                f" it is a broker of cluster {self.cluster_id}",
                hint="Start both with the same setting `metadata`. That store has their secret.",
            )


logger = logger_of(__name__)


def open_store(
    path: Path, backend: Backend | None, ids: Ids, broker_id: str | None = None
) -> tuple[LogDirectory, DurableStore, ClusterSecret]:
    """Open the broker's directory and the store of its cluster.

    Return both, and the cluster's secret.

    ``backend``: of a shared store, or None if the store lies in the directory. ``broker_id``: the
    directory's expected owner; None accepts any.

    Raises:
        WrongCluster: The directory and the store do not belong together. Or a broker has run in the
            directory, and the store is empty or missing.
        MetadataLost: Running brokers have another file open than the one at its path. Or the
            write-ahead log beside it is that of another file. Or etcd has lost changes since the
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
    """Return the backend of a lone broker's metadata store, which lies in its directory."""
    return SqliteBackend(path / STORE_NAME)


def _check_unused(path: Path, lost: str) -> None:
    """Raise WrongCluster if a broker has used the directory: its cluster is in another store.

    ``lost``: the state of the store, for the message. Without that store the broker would be a
    cluster by itself, under the id of the directory's cluster.
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
                "no topic in the metadata store has the id of %s: the store is older than the"
                " directory, or has lost the topic; the records are kept, but not served",
                path / "topics" / name / topic_id,
            )


_TRIES: Final = 10
_PAUSE_S: Final = 0.02


class DirectoryLock:
    """The lock of a directory, held from construction to :meth:`release`.

    Raises:
        DirectoryInUse: another process holds it.
    """

    def __init__(self, directory: Path) -> None:
        self._facts = directory / "broker.json"
        path = directory / "broker.lock"
        try:
            self._descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
        except OSError as error:
            raise StorageFailure(f"{path}: {error.strerror}", path=str(path)) from error
        for _ in range(_TRIES):
            if lock(self._descriptor):
                self._facts.unlink(missing_ok=True)  # left by a killed broker
                return
            # A client that checks whether a broker runs holds the lock for an instant.
            time.sleep(_PAUSE_S)
        os.close(self._descriptor)
        raise self._in_use(directory)

    def _in_use(self, directory: Path) -> DirectoryInUse:
        """Return the error, with the id of the process that holds the lock if it is readable."""
        text, path = f"another broker serves {directory}", str(directory)
        with contextlib.suppress(OSError, ValueError, KeyError, TypeError, psutil.Error):
            pid = int(json.loads(self._facts.read_text())["pid"])
            text += f": process {pid}"
            if psutil.Process(pid).status() == psutil.STATUS_STOPPED:
                return DirectoryInUse(
                    f"{text}, which a signal has stopped",
                    hint=f"Continue it (kill -CONT {pid}), or end it (kill -9 {pid}).",
                    path=path,
                )
        return DirectoryInUse(text, path=path)

    def publish(self, facts: dict[str, Any]) -> None:
        """Write ``broker.json`` atomically."""
        fresh = self._facts.with_suffix(".json.new")
        fresh.write_text(json.dumps(facts) + "\n")
        fresh.chmod(0o600)
        os.replace(fresh, self._facts)

    def release(self) -> None:
        """Remove the address, then release the lock."""
        self._facts.unlink(missing_ok=True)
        os.close(self._descriptor)
