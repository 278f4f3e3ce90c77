"""Which log a streaming sink's checkpoint belongs to: a note beside Spark's own files in it.

A source's offsets name their log; a sink has no offsets. Without the note a query would go on in
another log if its ``path`` or ``bootstrap`` came to mean one (a directory was replaced, an address
was reused), and would leave its rows in two logs. So the first plan of a query writes the id of the
log's cluster into the checkpoint, and every later one compares, before a task starts.

A checkpoint that is not a directory of the driver's host (object stores, HDFS) has no such note.
"""

from __future__ import annotations

import json
import os
import tempfile
from pathlib import Path
from typing import Final

from spark_stream.datasource.spark.place import Place, driver_directory
from spark_stream.errors import InvalidOption, WrongCluster

NOTE: Final = "isolog.json"


def check_checkpoint(checkpoint: str | None, place: Place) -> None:
    """Write the note into the checkpoint, or compare it with what is there.

    Raises:
        WrongCluster: the checkpoint belongs to a query that writes to another log.
    """
    folder = _local(checkpoint)
    if folder is None or place.cluster_id is None:
        return
    noted = _noted(folder / NOTE)
    if noted is None:
        _write(folder / NOTE, place.cluster_id)
    elif noted != place.cluster_id:
        raise WrongCluster(
            f"the checkpoint {folder} is of a query that writes to the log {noted}, and"
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
    """Return the checkpoint as a directory of this host; None if it is not one."""
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
        return None  # there is no note yet, or it cannot be read


def _write(note: Path, cluster_id: str) -> None:
    descriptor, name = tempfile.mkstemp(prefix=f".{NOTE}.", dir=note.parent)
    with os.fdopen(descriptor, "w") as file:
        json.dump({"cluster_id": cluster_id}, file)
    os.replace(name, note)
