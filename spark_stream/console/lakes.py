"""Lakes for the console: their lag by the brokers, and their tables and cuts by their location.

The brokers answer soon. A location may be slow, or out of the console's reach. So the tables are
read for the page of one lake alone, once for each request.
"""

from __future__ import annotations

import time
from itertools import islice
from typing import Any, Final

from spark_stream.client.leaders import Partitions
from spark_stream.client.log import Log
from spark_stream.lake_worker.status import cuts_of, topics_of, worker_of

_CUTS_MAX: Final = 20


def lakes_of(log: Log, partitions: Partitions) -> list[dict[str, Any]]:
    """Return the lakes that the user may describe, with their lag in records.

    ``partitions``: from the leaders' answers. A lag is None while a leader is missing. The lag of a
    topic that was deleted is None too.
    """
    now_ms = time.time_ns() // 1_000_000
    return [
        {
            "name": each.name,
            "location": each.location,
            "freshness_ms": each.freshness_ms,
            "file_bytes": each.file_bytes,
            "created_ms": each.created_ms,
            "recorded_ms": each.recorded_ms,
            "worker": worker_of(each, now_ms),
            "omitted": each.omitted,
            "stopped": each.stopped,
            "stopped_hint": each.stopped_hint,
            "topics": [
                {
                    "topic": topic.name,
                    "partitions": [
                        _place(number, topic.tiered.get(number), seen.found)
                        for number, seen in sorted(partitions.get(topic.name, {}).items())
                        if seen.topic_id == topic.id
                    ],
                }
                for topic in each.topics
            ],
        }
        for each in log.lakes()
    ]


def _place(number: int, recorded: int | None, found: Any) -> dict[str, Any]:
    facts = found.facts
    stable = None if facts is None else facts.last_stable_offset
    start = max(found.log_start_offset, recorded or 0)
    return {
        "partition": number,
        "recorded": recorded,
        "log_start": found.log_start_offset,
        "last_stable": stable,
        "lag": None if stable is None else max(0, stable - start),
    }


def tables_of(log: Log, name: str) -> dict[str, Any]:
    """Return the tables of a lake and its last cuts, as the console finds them in the location.

    A cut has the versions of topics that the user may describe.

    Raises:
        UnknownLake: There is no such lake.
        LakeUnavailable: The location did not answer.
    """
    lake = log.describe_lake(name)
    visible = {each.name for each in lake.topics}
    return {
        "tables": [
            {
                "topic": each.topic,
                "version": each.version,
                "files": each.files,
                "size": each.size,
                "problem": each.problem and each.problem.message,
                "hint": each.problem and each.problem.hint,
            }
            for each in topics_of(log, lake)
        ],
        "cuts": [
            {
                "number": each.number,
                "time_ms": each.time_ms,
                "versions": {of.topic: of.version for of in each.entries if of.topic in visible},
            }
            for each in islice(cuts_of(lake), _CUTS_MAX)
        ],
    }
