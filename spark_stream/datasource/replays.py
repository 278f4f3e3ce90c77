"""A committed batch that comes again: the same rows are dropped, others are refused."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence

from spark_stream.datasource.content import Measure
from spark_stream.datasource.identity import Identity
from spark_stream.errors import DifferentReplay
from spark_stream.wire.transaction_messages import TopicContent

logger = logging.getLogger(__name__)


def check_replay(
    identity: Identity,
    committed: Sequence[TopicContent],
    came: Mapping[str, Measure],
    keep: bool,
) -> None:
    """DifferentReplay, or a warning, if what came is not what was committed."""
    known = {each.topic: Measure(each.rows, each.digest) for each in committed}
    if known == came:
        return
    # Other topics come if the query was changed, or if two queries share the sink's id.
    elsewhere = known.keys() != came.keys()
    shared = "One sinkId is for one sink: give each its own. " if elsewhere else ""
    other = DifferentReplay(
        f"batch {identity.batch} of {identity.transactional_id!r} is committed, and comes again"
        f" with other rows: committed {_rows(known)}, now {_rows(came)}"
        + (" of other values" if _rows(known) == _rows(came) else ""),
        hint=f"{shared}{DifferentReplay.hint}",
        batch=identity.batch,
        committed={topic: found.rows for topic, found in known.items()},
        came={topic: found.rows for topic, found in came.items()},
    )
    if not keep:
        raise other
    logger.warning("what was committed is kept: %s", other.message)


def _rows(found: Mapping[str, Measure]) -> str:
    if not found:
        return "no rows"
    return ", ".join(f"{each.rows} rows to {topic!r}" for topic, each in sorted(found.items()))
