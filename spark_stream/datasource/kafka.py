"""Options of Spark's Kafka connector, and what to use instead of each."""

from __future__ import annotations

from typing import Final

_NOTHING: Final = "leave it out: nothing is needed instead"
_NO_GROUPS: Final = (
    "leave it out: there are no consumer groups, a query's offsets are in its checkpoint"
)
_SECURITY: Final = "leave it out: this release has neither TLS nor authentication"

# The first prefix (in lower case) that fits decides.
_INSTEAD: Final = (
    ("kafka.bootstrap.servers", "use bootstrap"),
    ("kafka.isolation.level", "use isolation (of the source)"),
    ("kafka.acks", "use isolation (of the sink)"),
    ("kafka.transactional.id", "use sinkId, or nothing: the sink is transactional as it is"),
    ("kafka.group.", _NO_GROUPS),
    ("kafka.auto.offset.reset", "use startingOffsets"),
    ("kafka.security.", _SECURITY),
    ("kafka.sasl.", _SECURITY),
    ("kafka.ssl.", _SECURITY),
    ("kafka.", _NOTHING),
    ("groupidprefix", _NO_GROUPS),
    ("kafkaconsumer.", _NOTHING),
    ("fetchoffset.", _NOTHING),
    (
        "startingoffsetsbytimestampstrategy",
        "leave it out: where no record is at or after the time, the query starts at the end",
    ),
)


def instead_of(option: str) -> str | None:
    """What to use instead of this option; None if it is not one of Kafka's."""
    name = option.lower()
    return next((hint for prefix, hint in _INSTEAD if name.startswith(prefix)), None)
