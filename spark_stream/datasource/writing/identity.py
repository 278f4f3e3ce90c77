"""The identity of a sink: its transactional id, query, run and micro-batch, its driver, its log.

*Identity.* A streaming sink's identity is the option ``sinkId``, or else the id that Spark gives a
query and keeps in its checkpoint (decision 14). A task reads its query, run and micro-batch from
local properties of its job. Spark does not document their names, so each is checked before a task
writes: a sink that guessed could take another sink's batch for its own, and drop it.

A batch write has no query. With ``sinkId`` and ``batchId`` its user names the batch, and each
attempt at it is a separate run. Without them it is a job that is never replayed.

*Plan.* Spark passes to a sink's ``abort`` the batch id and the messages of the tasks that had
ended, perhaps none, but neither query nor run. But planning, commit and abort all run in Python
processes that the driver's JVM has started, and a checkpoint has one query in it. So JVM and
checkpoint name the run. A clock that all processes of the host share shows which plans an abort
gives up: a later run of the same query in the same JVM plans later.

*Log.* A source's offsets name their log, but a sink has no offsets. Without a note in its
checkpoint, a query would continue in another log if its ``path`` or ``bootstrap`` came to mean one
(a directory was replaced, an address was reused), and would leave its rows in two logs. So the
first plan of a query writes the id of the log's cluster into the checkpoint, beside Spark's files.
Every later plan compares it before a task starts. A checkpoint that is not a directory of the
driver's host (object stores, HDFS) has no such note.
"""

from __future__ import annotations

import hashlib
import json
import os
import socket
import tempfile
import time
import uuid
from functools import lru_cache
from pathlib import Path
from typing import Final

import psutil
from msgspec import Struct
from pyspark import TaskContext

from spark_stream.consistency.transactions.sinks import BATCH_WRITES
from spark_stream.datasource.spark.place import Place, driver_directory
from spark_stream.datasource.spark.workers import visible_jvm
from spark_stream.errors import InvalidOption, Unsupported, WrongCluster
from spark_stream.operating_system import boot_id

QUERY: Final = "sql.streaming.queryId"
BATCH: Final = "streaming.sql.batchId"
RUN: Final = "spark.jobGroup.id"
NOTE: Final = "isolog.json"


class BranchIdentity(Struct, frozen=True):
    """The identity under which a task opens its branch.

    ``query`` owns the transactional id permanently. ``instance`` is its present run, which fences
    the runs before it.
    """

    transactional_id: str
    query: str
    instance: str
    batch: int
    query_name: str = ""
    """The query's name for people."""

    @property
    def streaming(self) -> bool:
        """Whether it is that of a streaming query."""
        return self.remembered and not self.query.startswith(BATCH_WRITES)

    @property
    def remembered(self) -> bool:
        """Whether its batch may be replayed, so that the commit records a digest of its rows."""
        return self.query != self.transactional_id


def job_identity(query_name: str = "") -> BranchIdentity:
    """Make the identity of a batch write: new, and never used again."""
    name = f"job/{uuid.uuid4().hex}"
    return BranchIdentity(name, query=name, instance=name, batch=0, query_name=query_name)


def batch_identity(sink_id: str, batch_id: int, query_name: str = "") -> BranchIdentity:
    """Make the identity of one attempt to write a batch that its user has numbered."""
    instance = f"batch/{uuid.uuid4().hex}"
    query = f"{BATCH_WRITES}{sink_id}"
    return BranchIdentity(f"sink/{sink_id}", query, instance, batch_id, query_name)


def task_identity(
    sink_id: str | None, context: TaskContext | None, query_name: str = ""
) -> BranchIdentity:
    """Return the identity of the micro-batch that the task works for.

    Raises:
        Unsupported: naming the local property that Spark did not set, or set to something else.
    """
    query = _id(context, QUERY)
    run = _id(context, RUN)
    batch = _property(context, BATCH)
    if not (batch.isascii() and batch.isdecimal()):
        raise _unusable(BATCH, f"is {batch!r}, not a number")
    name = f"query/{query}" if sink_id is None else f"sink/{sink_id}"
    return BranchIdentity(name, query, run, int(batch), query_name)


def _id(context: TaskContext | None, key: str) -> str:
    value = _property(context, key)
    try:
        return str(uuid.UUID(value))
    except ValueError:
        raise _unusable(key, f"is {value!r}, not a UUID") from None


def _property(context: TaskContext | None, key: str) -> str:
    value = None if context is None else context.getLocalProperty(key)
    if not value:
        raise _unusable(key, "is not set")
    return value


def _unusable(key: str, what: str) -> Unsupported:
    return Unsupported(
        f"the exactly-once sink needs the local property {key!r} of Spark's task, which {what}",
        hint="Use a Spark release that isolog supports, or set transactional to false.",
        property=key,
    )


class Plan(Struct, frozen=True):
    """The driver that planned a batch (empty: unknown), and the time by that driver's clock."""

    run: str = ""
    planned: int = 0


NO_PLAN: Final = Plan()


def plan_of(checkpoint: str | None) -> Plan:
    """Return a plan of the present time. An abort sends one, to abandon the run's earlier ones."""
    run = "" if checkpoint is None else _run(os.getpid(), checkpoint)
    return Plan(run, time.monotonic_ns())


@lru_cache(maxsize=256)
def _run(process: int, checkpoint: str) -> str:
    """Return a text that is the same in all Python processes of one JVM, and in no other's.

    ``process`` is the id of this process: a fork must not get its parent's cached text.
    """
    jvm = visible_jvm()
    if jvm is None:
        return ""
    # The clock of a plan counts from the start of the host.
    host = boot_id() or str(int(psutil.boot_time()))
    parts = (socket.gethostname(), host, str(jvm.pid), checkpoint)
    return hashlib.blake2b("\0".join(parts).encode(), digest_size=16).hexdigest()


def check_checkpoint(checkpoint: str | None, place: Place) -> None:
    """Write the note into the checkpoint, or compare it with the note that is in it.

    Raises:
        WrongCluster: The checkpoint belongs to a query that writes to another log.
    """
    folder = _local(checkpoint)
    if folder is None or place.cluster_id is None:
        return
    noted = _noted(folder / NOTE)
    if noted is None:
        _write(folder / NOTE, place.cluster_id)
    elif noted != place.cluster_id:
        raise WrongCluster(
            f"the checkpoint {folder} is of a query that writes to the log {noted}, but"
            f" {place.name} is the log {place.cluster_id}",
            hint="Give the place of that log, or begin a new checkpoint.",
            expected=noted,
            found=place.cluster_id,
        )


def noted_log(checkpoint: str | None) -> str | None:
    """Return the id of the log that the checkpoint belongs to, or None without a note."""
    folder = _local(checkpoint)
    return None if folder is None else _noted(folder / NOTE)


def _local(checkpoint: str | None) -> Path | None:
    """Return the checkpoint as a directory of this host, or None if it is not one."""
    if not checkpoint:
        return None
    if checkpoint.startswith("file:"):
        found = Path("/" + checkpoint.removeprefix("file:").lstrip("/"))
    elif "://" in checkpoint:
        return None
    else:
        found = Path(checkpoint)
    try:
        found = found if found.is_absolute() else driver_directory() / found
    except InvalidOption:
        return None
    # Spark makes it before the first plan. If it is not here, it is in Spark's default file system.
    return found if found.is_dir() else None


def _noted(note: Path) -> str | None:
    try:
        return str(json.loads(note.read_text())["cluster_id"])
    except (OSError, ValueError, KeyError, TypeError):
        return None  # the note is missing, or not valid


def _write(note: Path, cluster_id: str) -> None:
    descriptor, name = tempfile.mkstemp(prefix=f".{NOTE}.", dir=note.parent)
    with os.fdopen(descriptor, "w") as file:
        json.dump({"cluster_id": cluster_id}, file)
    os.replace(name, note)
