"""Distinct types for what must not be mixed up. All numbers count from 0."""

from __future__ import annotations

import re
from typing import Final, NewType

Offset = NewType("Offset", int)
"""The position of a record in its partition. Dense: it counts records and nothing else."""

EntryIndex = NewType("EntryIndex", int)
"""The position of an entry (a batch or a marker) in its partition; the unit of replication."""

LeaderEpoch = NewType("LeaderEpoch", int)
"""Rises by one with each new leader of a partition."""

BrokerId = NewType("BrokerId", str)
"""Names a broker; it stays the same for as long as the broker's directory does."""

Generation = NewType("Generation", str)
"""Names a state of a broker's logs: the same while they hold all that the broker acknowledged."""

NO_PRODUCER: Final = -1
NO_PRODUCER_EPOCH: Final = -1
NO_SEQUENCE: Final = -1
NO_TRANSACTION: Final = -1

_FOLDER_NAME: Final = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9._-]{0,199}")


def is_folder_name(text: str) -> bool:
    """Return whether a topic's name or id can name its folder: not a path, and not hidden."""
    return _FOLDER_NAME.fullmatch(text) is not None
