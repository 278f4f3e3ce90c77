"""A committed batch that comes again: the same rows are dropped, others are refused."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import Final

from msgspec.structs import replace

from spark_stream.consistency.transactions.transactions import Content
from spark_stream.datasource.values.content import Measure, Replays
from spark_stream.datasource.writing.identity import BranchIdentity
from spark_stream.errors import DifferentReplay

logger = logging.getLogger(__name__)

_FLOATS_HINT: Final = (
    "If the query adds up floating-point numbers (sum, avg), their last digits may differ each"
    " time: set differentReplay to ignoreFloats. Otherwise: "
)


def check_replay(
    identity: BranchIdentity,
    committed: Sequence[Content],
    came: Mapping[str, Measure],
    replays: Replays,
) -> None:
    """Raise DifferentReplay, or warn, if what came is not what was committed."""
    known = {each.topic: Measure(each.rows, each.digest, each.floats) for each in committed}
    if known == came:
        return
    only_floats = _without_floats(known) == _without_floats(came)
    if only_floats and replays is Replays.IGNORE_FLOATS:
        return
    # Other topics come if the query was changed, or if two queries share the sink's id.
    elsewhere = known.keys() != came.keys()
    shared = "One sinkId is for one sink: give each its own. " if elsewhere else ""
    values = ""
    if _rows(known) == _rows(came):
        values = " of other floating-point values" if only_floats else " of other values"
    floats = _FLOATS_HINT if only_floats else ""
    other = DifferentReplay(
        f"batch {identity.batch} of {identity.transactional_id!r} is committed, and comes again"
        f" with other rows: committed {_rows(known)}, now {_rows(came)}{values}",
        hint=f"{shared}{floats}{DifferentReplay.hint}",
        batch=identity.batch,
        committed={topic: found.rows for topic, found in known.items()},
        came={topic: found.rows for topic, found in came.items()},
    )
    if replays is not Replays.KEEP:
        raise other
    logger.warning("what was committed is kept: %s", other.message)


def _without_floats(found: Mapping[str, Measure]) -> dict[str, Measure]:
    return {topic: replace(each, floats=0) for topic, each in found.items()}


def _rows(found: Mapping[str, Measure]) -> str:
    if not found:
        return "no rows"
    return ", ".join(f"{each.rows} rows to {topic!r}" for topic, each in sorted(found.items()))
