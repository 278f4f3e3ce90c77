"""Where a query starts or ends, as its options say it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from spark_stream.datasource.offsets import TopicOffsets, from_json
from spark_stream.errors import InvalidOption, InvalidRequest
from spark_stream.wire.messages import EARLIEST, LATEST

OffsetsByTopic = Mapping[str, Mapping[int, int]]


@dataclass(frozen=True, slots=True)
class FromProgress:
    """Streaming offsets as a query's progress shows them; ``logged`` is that JSON, parsed."""

    logged: Mapping[str, Any]
    offsets: Mapping[str, TopicOffsets]


Named = int | OffsetsByTopic | FromProgress
"""-2 (earliest), -1 (latest), offsets by topic and partition (-2 and -1 among them), or a progress.
"""

_WORDS: Final = {"earliest": EARLIEST, "latest": LATEST}


def offsets(name: str, text: str) -> Named:
    """``earliest``, ``latest``, offsets by topic and partition, or those of a progress."""
    if text.strip().lower() in _WORDS:
        return _WORDS[text.strip().lower()]
    found: OffsetsByTopic
    progress = None
    try:
        parsed = json.loads(text)
        if parsed and all("partitions" in topic for topic in parsed.values()):
            progress = FromProgress(parsed, from_json(parsed))
            found = {topic: at.offsets for topic, at in progress.offsets.items()}
        else:
            found = {
                str(topic): {int(number): int(offset) for number, offset in places.items()}
                for topic, places in parsed.items()
            }
    except (ValueError, AttributeError, TypeError, OverflowError, InvalidRequest):
        raise InvalidOption(
            f'{name} takes earliest | latest | {{"topic": {{"0": 23, "1": -2}}}} | a streaming'
            f" offset of a query's progress, not {text!r}",
            option=name,
        ) from None
    for topic, places in found.items():
        for number, offset in places.items():
            if offset < EARLIEST or number < 0:
                raise InvalidOption(
                    f"{name}: {topic}/{number}: an offset is at least 0, or -2 (earliest), or -1"
                    f" (latest), not {offset}",
                    option=name,
                )
    return progress or found


def topics_of(place: Named) -> tuple[str, ...]:
    """The topics that a place names."""
    if isinstance(place, int):
        return ()
    return tuple(place.offsets if isinstance(place, FromProgress) else place)
