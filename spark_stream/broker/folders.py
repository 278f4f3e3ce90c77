"""The folders of topics: an empty one never takes the place of one that is lost.

A topic's folder holds all replicas that the broker has of it, and a replica has no files before its
first record. So a folder that is there says that nothing is missing, and whoever makes one has to
know that for all of these replicas: when the topic is made, when it gets partitions, when a replica
moves here, and when the broker starts.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from pathlib import Path

from spark_stream.consistency.ids import BrokerId
from spark_stream.consistency.partition_record import PartitionRecord
from spark_stream.errors import DamagedSegment
from spark_stream.storage.logs import Logs

_RESTORE = "Restore it from a backup and restart the broker, or delete the topic."
_RESTART = "Restore it from a backup, or just restart the broker: it fetches the records anew."


def make_folder(
    logs: Logs,
    folder: Path,
    topic: str,
    records: Collection[PartitionRecord],
    me: BrokerId,
    *,
    starts: bool,
    losing: Callable[[], None],
) -> str | None:
    """Makes a topic's folder if it is missing; what was lost with it, if others have that.

    ``records``: of all partitions of which this broker has a replica by now. ``starts``: none of
    these is open, and the broker has not vouched for its logs; only then can it be filled again.
    ``losing``: as :class:`~spark_stream.storage.logs.FileLogs` says.

    Raises:
        DamagedSegment: it is missing, and must stay so: the next start would take what is lost for
            empty logs.
        DiskFull, StorageFailure: it may be there or not.
    """
    lost = None
    if not logs.has_folder(folder):
        had = [each for each in records if each.member(me)]
        alone = any(each.is_only_member(me) for each in had)
        if had:
            lost = f"{folder} is missing, and with it all records of topic {topic!r}"
        if lost is not None and (alone or not starts):
            what = lost if alone else f"{lost} here: restart the broker"
            raise DamagedSegment(what, hint=_RESTORE if alone else _RESTART, path=str(folder))
        if lost is not None:
            losing()
    logs.make_folder(folder)
    return lost
