"""Distinct types for numbers and names. All numbers count from 0."""

from __future__ import annotations

import re
from typing import Final, NewType

Offset = NewType("Offset", int)
"""The position of a record in its partition. Dense: it counts only records."""

EntryIndex = NewType("EntryIndex", int)
"""The position of an entry (a batch or a marker, the unit of replication) in its partition."""

LeaderEpoch = NewType("LeaderEpoch", int)
"""Rises by one with each new leader of a partition."""

BrokerId = NewType("BrokerId", str)
"""The name of a broker. It belongs to the broker's directory and never changes."""

Generation = NewType("Generation", str)
"""The name of a state of a broker's logs. It is kept while they hold all acknowledged entries."""

NO_PRODUCER: Final = -1
NO_PRODUCER_EPOCH: Final = -1
NO_SEQUENCE: Final = -1
NO_TRANSACTION: Final = -1

_FOLDER_NAME: Final = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9._-]{0,199}")


def is_folder_name(text: str) -> bool:
    """Return whether a topic's name or id is a valid name of a folder: no path, and not hidden."""
    return _FOLDER_NAME.fullmatch(text) is not None
