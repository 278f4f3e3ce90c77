"""Many small ranges in one call to each leader.

It saves calls, and nothing depends on it: whatever keeps a range from being read to its end here
(its leader has changed, its records are gone, a broker is away) is found out, and dealt with or
told, when the range is read by itself (:mod:`spark_stream.client.reading.fetching`).
"""

from __future__ import annotations

import logging
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from msgspec import structs

from spark_stream.client.connecting.link import left
from spark_stream.client.connecting.routes import Route
from spark_stream.client.reading.fetching import (
    CREDIT,
    FETCH_ERRORS,
    Fetched,
    Source,
    moved_to,
    received,
    shown,
)
from spark_stream.errors import InvalidRequest, IsologError
from spark_stream.transport.failures import failure_of
from spark_stream.transport.streams import BlockingStream
from spark_stream.wire.fetch_messages import (
    ChunkFacts,
    EndFacts,
    FailureFacts,
    Fetch,
    PlacesFacts,
)
from spark_stream.wire.limits import FETCH_BYTES_DEFAULT
from spark_stream.wire.methods import FETCH

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Wanted:
    """The records ``[start, end)`` of a source."""

    source: Source
    start: int
    end: int


def fetch_many(wanted: Sequence[Wanted]) -> Iterator[tuple[int, Fetched]]:
    """Which range, and records of it, in their order; never raises because of a range or a broker.

    All sources have one router. Read on where the last ``next`` of each range says.
    """
    groups: dict[tuple[str, str, str], list[tuple[int, Route]]] = defaultdict(list)
    sent: dict[int, str] = {}  # by the view: most ranges share one
    for number, each in enumerate(wanted):
        try:
            route = each.source.route()
        except IsologError as error:
            logger.debug("a range is left to be read by itself: %s", error)
            continue
        view = each.source.view
        if id(view) not in sent:
            sent[id(view)] = str([view.field(name) for name in view.asked])
        groups[route.leader, route.address, sent[id(view)]].append((number, route))
    for group in groups.values():
        yield from _fetch(wanted, group)


def _fetch(
    wanted: Sequence[Wanted], group: Sequence[tuple[int, Route]]
) -> Iterator[tuple[int, Fetched]]:
    """The ranges of a group, which have one leader, in one call."""
    source, (_, route) = wanted[group[0][0]].source, group[0]
    router = source.router
    asked = Fetch(
        ranges=[
            structs.replace(
                each.source.fetch(each.start, each.end, 0, FETCH_BYTES_DEFAULT),
                leader_epoch=known.epoch,
            )
            for each, known in ((wanted[number], known) for number, known in group)
        ]
    )
    deadline = time.monotonic() + router.timeout_s
    try:
        shared = router.link(route).connect(left(deadline))
    except IsologError as error:
        logger.debug("ranges are left to be read by themselves: %s", error)
        return
    stream: BlockingStream | None = None
    try:
        stream = shared.channel.open(
            FETCH, b"", asked.to_bytes(), end=True, credit=CREDIT, timeout_s=left(deadline)
        )
        for rows, facts in received(stream, deadline):
            if isinstance(facts, PlacesFacts):
                raise InvalidRequest("an answer tells places that were not asked for")
            number = group[facts.range][0]
            match facts:
                case FailureFacts():
                    logger.debug("a range is left to be read by itself: %s", facts.error)
                case EndFacts():
                    yield number, moved_to(wanted[number].source, facts.next)
                case ChunkFacts():
                    if rows is not None:
                        yield number, shown(wanted[number].source, rows, facts)
    except FETCH_ERRORS as error:
        mine = failure_of(error, route.address)
        logger.debug("ranges are left to be read by themselves: %s", mine)
    finally:
        if stream is not None:
            stream.cancel()
